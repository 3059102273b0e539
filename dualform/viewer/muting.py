"""What the model would say without some slots: `mute`. Recorded contributions are removed, nothing is retrained.

Classes and tasks are muted by subtracting the weights due to them, which are summed up once for each class. What else
is muted, such as single images or a stretch of time, is read from the run: all slots of it that no class muted already.
"""

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import GroupWeights
from dualform.errors import QueryError, Refused, UnknownName
from dualform.viewer import code
from dualform.viewer.jobs import Progress
from dualform.viewer.opened_run import POSITION, OpenedRun
from dualform.viewer.predictions import LIKELIEST_TOKENS, prediction, probabilities_for
from dualform.viewer.requests import MuteRequest, MuteSet
from dualform.viewer.resolved_input import ResolvedInput, resolve_input

Added = Mapping[str, Tensor]  # what slots have added, by parameter
_CACHED_SETS = 8  # whose weights are kept, by layer


class Muting:
    """Answers about muted slots. `group_weights` is None until it has been summed up."""

    def __init__(self, run: OpenedRun) -> None:
        self._run, self._memory = run, run.memory
        self.group_weights: GroupWeights | None = None
        self._too_large = False
        self._read = lru_cache(maxsize=_CACHED_SETS)(self._read_from_run)
        self._visits: dict[str, dict[int | None, int]] = {}  # slots by layer and class
        self._slots = {layer: facts["slots"] for layer, facts in self._memory.summary()["layers"].items()}
        self._lock = threading.Lock()  # parameters are exchanged in the network while it runs
        self._network = copy.deepcopy(run.network)
        self._parameters = {} if self._network is None else self._memory.parameters(self._network)

    def prepare(self, progress: Progress = lambda share: None) -> None:
        """Sum up the weights due to each class: one reading of all slots."""
        layers, classes = self._memory.layers, self._run.classes
        if "mute" in self._run.cannot or not classes.by:
            return
        for layer in layers:
            rows = self._memory.visits(layer, by=classes.by).rows()
            self._visits[layer] = {classes.of_row(row): row["visits"] for row in rows}
        try:
            self.group_weights = self._memory.group_weights(
                by=classes.by, progress=lambda layer: progress(layers.index(layer) / len(layers))
            )
        except QueryError:  # more than fits into memory: each is read when it is muted
            self._too_large = True

    def reads_slots(self, sets: Sequence[MuteSet]) -> bool:
        """Return whether slots have to be read to mute these."""
        return bool(sets) and (self._too_large or not all(map(self._is_of_classes, sets)))

    def mute(self, request: MuteRequest) -> dict[str, Any]:
        """Say what the model says before, without the muted slots, and without them in each layer alone."""
        resolved, text = resolve_input(self._run, request.input), self._run.text
        if "mute" in self._run.cannot:
            raise Refused(self._run.cannot["mute"])
        added, slots = self._added(request.mute)
        everywhere = {name: tensor for layer in added.values() for name, tensor in layer.items()}
        before, after = self._probabilities(resolved, {}), self._probabilities(resolved, everywhere)
        alone = {layer: self._probabilities(resolved, of_layer) for layer, of_layer in added.items()}
        tokens = None
        if text is not None:  # the likeliest before, and those that became likely
            most = min(LIKELIEST_TOKENS, len(before))
            became: list[int] = after.topk(min(4, most)).indices.tolist()
            others = [token for token in before.topk(most).indices.tolist() if token not in became]
            tokens = sorted({*others[: most - len(became)], *became}, key=lambda token: -float(before[token]))
        lines = [*resolved.python, *code.muted(request.mute)]
        lines += code.predicted("muted", prompt=resolved.token is not None)
        return {
            "before": prediction(before, text, tokens),
            "after": prediction(after, text, tokens),
            "layers": {layer: prediction(probabilities, text, tokens) for layer, probabilities in alone.items()},
            "slots": slots,
            "python": "\n".join(lines),
        }

    def _probabilities(self, resolved: ResolvedInput, added: Added) -> Tensor:
        """Return what the network says without what some slots have added to its parameters."""
        assert self._network is not None
        with self._lock, _without(self._parameters, added):
            return probabilities_for(self._network, resolved)

    def _added(self, sets: Sequence[MuteSet]) -> tuple[dict[str, Added], dict[str, list[int]]]:
        """Return what all slots of the sets have added to each layer; and how many they are, of how many."""
        classes, others = self._classes(sets), [s for s in sets if not self._is_of_classes(s)]
        if classes and self.group_weights is None and not self._too_large:
            raise Refused("the weights due to each class are being summed up", status=503, job="mute")
        if self._too_large:
            classes, others = [], list(sets)
        added: dict[str, Added] = {}
        slots = {}
        for layer in self._memory.layers:
            parts, count = list[Added](), 0
            if classes and self.group_weights is not None:
                rows = enumerate(self.group_weights.groups.rows())
                groups = [number for number, row in rows if self._run.classes.of_row(row) in classes]
                parts.append(self.group_weights.added(layer, groups))
                count = sum(self._visits[layer].get(number, 0) for number in classes)
            for number, mute_set in enumerate(others):
                part, more = self._read(layer, mute_set, frozenset(classes), tuple(others[:number]))
                parts.append(part)
                count += more
            if parts:
                added[layer] = {name: torch.stack([part[name] for part in parts]).sum(dim=0) for name in parts[0]}
            slots[layer] = [count, self._slots[layer]]
        return added, slots

    def _is_of_classes(self, mute_set: MuteSet) -> bool:
        """Return whether a set is made of whole classes."""
        ranged = mute_set.steps is not None or mute_set.positions is not None
        names, by = {name for name, _ in mute_set.tags}, {*self._run.classes.by}
        return not ranged and (names == by or (names < by and not self._partly_tagged))

    @cached_property
    def _partly_tagged(self) -> bool:
        """Whether some slots have a task but no label, or a label but no task, and so are in no class."""
        by = self._run.classes.by
        rows = (row for layer in self._memory.layers for row in self._memory.visits(layer, by=by).rows())
        return any(len({row[name] is None for name in by}) > 1 for row in rows)

    def _classes(self, sets: Sequence[MuteSet]) -> list[int]:
        """Return the classes that are in sets of classes."""
        classes, entries = set[int](), self._run.classes.entries
        for tags in (dict(mute_set.tags) for mute_set in sets if self._is_of_classes(mute_set)):
            for name, values in tags.items():
                known = [getattr(entry, name) for entry in entries]
                if unknown := [value for value in values if value not in known]:
                    raise UnknownName(f"value of tag {name!r}:", unknown[0], sorted(set(known)))
            for number, entry in enumerate(entries):
                if all(getattr(entry, name) in values for name, values in tags.items()):
                    classes.add(number)
        return sorted(classes)

    def _read_from_run(
        self, layer: str, mute_set: MuteSet, classes: frozenset[int], before: tuple[MuteSet, ...]
    ) -> tuple[Added, int]:
        """Return what slots of a set, that are in no class or set muted before, have added; and how many they are."""
        view = self._memory.where(**self._conditions(mute_set))
        for number in sorted(classes):
            entry = self._run.classes.entries[number]
            view = view.without(**{name: getattr(entry, name) for name in self._run.classes.by})
        for other in before:
            view = view.without(**self._conditions(other))
        return view.added(layer), view.slots(layer)

    def _conditions(self, mute_set: MuteSet) -> dict[str, Any]:
        """Write a set as `Memory.where` takes it."""
        conditions: dict[str, Any] = {name: list(values) for name, values in mute_set.tags}
        if mute_set.steps:
            conditions["step"] = range(mute_set.steps[0], min(mute_set.steps[1], self._memory.steps))
        if mute_set.positions:
            first, end = mute_set.positions
            conditions[POSITION] = self._positions[(self._positions >= first) & (self._positions < end)]
            if not len(conditions[POSITION]):
                raise Refused(f"no position from {first:,} to {end - 1:,} was trained on")
        return conditions

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        """Positions that training has come by, ascending: those of the first layer whose slots have any."""
        if POSITION not in self._memory.tags:
            raise Refused(f"the run has no tag {POSITION!r}")
        for layer in self._memory.layers:
            visited = self._memory.visits(layer, by=POSITION)[POSITION].tolist()
            if positions := [position for position in visited if position is not None]:
                return np.array(positions)
        return np.empty(0, dtype=np.int64)  # no slot is at a single position


@contextmanager
def _without(parameters: Mapping[str, nn.Parameter], added: Added) -> Iterator[None]:
    """Take what slots have added away from parameters, until the end of the block."""
    trained = {name: parameters[name].data for name in added}
    try:
        for name, data in trained.items():
            parameters[name].data = (data.double() - added[name]).to(data.dtype)
        yield
    finally:
        for name, data in trained.items():
            parameters[name].data = data

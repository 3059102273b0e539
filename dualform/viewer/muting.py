"""What the model would say without some slots: `mute`. Recorded contributions are removed, nothing is retrained.

Classes and tasks are muted by subtracting the weights due to them, which are summed up once for each class. What else
is muted, such as single images or a stretch of time, is read from the run: all slots of it that no class muted already.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dualform.viewer.exhibit import POSITION, Exhibit
from dualform.viewer.predictions import LIKELIEST, said_as, said_of
from dualform.viewer.requests import MuteRequest, MuteSet
from dualform.viewer.subject import Subject, subject_of

Added = Mapping[str, Tensor]  # by parameter
_KEPT = 8  # sets whose weights are kept


class Muting:
    """Answers about muted slots. `group_weights` is None until it has been summed up."""

    def __init__(self, exhibit: Exhibit) -> None:
        self._exhibit, self._memory = exhibit, exhibit.memory
        self.group_weights: GroupWeights | None = None
        self._unsummed = False
        self._read = lru_cache(maxsize=_KEPT)(self._read_from_run)
        self._seen = lru_cache(maxsize=None)(lambda layer: list(self._memory.seen(layer, by=exhibit.classes.by).rows()))
        self._one_at_a_time = threading.Lock()  # parameters are exchanged in the network while it runs
        self._network = copy.deepcopy(exhibit.network)
        self._parameters = {} if self._network is None else self._memory.parameters(self._network)

    @property
    def possible(self) -> bool:
        return "mute" not in self._exhibit.cannot

    def prepare(self, progress: Callable[[str], None] = lambda layer: None) -> None:
        """Sum up the weights due to each class: one reading of all slots."""
        if self.possible and self._exhibit.classes.by:
            try:
                self.group_weights = self._memory.group_weights(by=self._exhibit.classes.by, progress=progress)
                for layer in self._memory.layers:
                    self._seen(layer)
            except QueryError:  # more than fits into memory: each is read when it is muted
                self._unsummed = True

    def reads_slots(self, request: MuteRequest) -> bool:
        """Return whether slots have to be read for an answer."""
        return bool(request.mute) and (self._unsummed or not all(map(self._of_classes, request.mute)))

    def mute(self, request: MuteRequest) -> dict[str, Any]:
        subject = subject_of(self._exhibit, request.input)
        if not self.possible:
            raise Refused(self._exhibit.cannot["mute"])
        added, slots = self._added(request.mute)
        before = self._said(subject, {})
        after = self._said(subject, {name: one for layer in added.values() for name, one in layer.items()})
        alone = {name: self._said(subject, one) for name, one in added.items()}
        tokens = None if self._exhibit.text is None else _worth_showing(before, after)
        lines = [*subject.python, *code.muted(request.mute), *code.predicted("muted", prompt=subject.token is not None)]
        return {
            "before": said_as(before, self._exhibit.text, tokens),
            "after": said_as(after, self._exhibit.text, tokens),
            "layers": {name: said_as(one, self._exhibit.text, tokens) for name, one in alone.items()},
            "slots": slots,
            "python": "\n".join(lines),
        }

    def _said(self, subject: Subject, added: Added) -> Tensor:
        """What the network says without what some slots have added to its parameters."""
        assert self._network is not None
        with self._one_at_a_time, _without(self._parameters, added):
            return said_of(self._network, subject)

    def _added(self, sets: Sequence[MuteSet]) -> tuple[dict[str, Added], dict[str, list[int]]]:
        """What all slots of the sets have added to each layer; and how many they are, of how many."""
        classes, others = self._classes(sets), [one for one in sets if not self._of_classes(one)]
        if classes and self.group_weights is None and not self._unsummed:
            raise Refused("the weights due to each class are being summed up", status=503, job="mute")
        if self._unsummed:
            classes, others = [], list(sets)
        found: dict[str, Added] = {}
        slots = {}
        for layer in self._memory.layers:
            parts = [self._by_group_weights(layer, classes)] if classes else []
            count = self._visits(layer, classes) if classes else 0
            for number, one in enumerate(others):
                part, more = self._read(layer, one, frozenset(classes), tuple(others[:number]))
                parts.append(part)
                count += more
            if parts:
                found[layer] = {name: torch.stack([part[name] for part in parts]).sum(dim=0) for name in parts[0]}
            slots[layer] = [count, self._slots[layer]]
        return found, slots

    def _visits(self, layer: str, classes: Sequence[int]) -> int:
        return sum(row["visits"] for row in self._seen(layer) if self._exhibit.classes.of_row(row) in classes)

    @cached_property
    def _slots(self) -> dict[str, int]:
        return {name: facts["slots"] for name, facts in self._memory.summary()["layers"].items()}

    def _by_group_weights(self, layer: str, classes: Sequence[int]) -> Added:
        assert self.group_weights is not None
        rows = enumerate(self.group_weights.groups.rows())
        return self.group_weights.added(
            layer, [number for number, row in rows if self._exhibit.classes.of_row(row) in classes]
        )

    def _of_classes(self, one: MuteSet) -> bool:
        return (
            one.steps is None
            and one.positions is None
            and {name for name, _ in one.tags} <= {*self._exhibit.classes.by}
        )

    def _classes(self, sets: Sequence[MuteSet]) -> list[int]:
        """The classes that sets of classes mean."""
        found = set[int]()
        for tags in (dict(one.tags) for one in sets if self._of_classes(one)):
            every = self._exhibit.classes.every
            for name, values in tags.items():
                known = [getattr(one, name) for one in every]
                if strange := [value for value in values if value not in known]:
                    raise UnknownName(f"value of tag {name!r}:", strange[0], sorted(set(known)))
            found |= {i for i, one in enumerate(every) if all(getattr(one, n) in values for n, values in tags.items())}
        return sorted(found)

    def _read_from_run(
        self, layer: str, one: MuteSet, classes: frozenset[int], before: tuple[MuteSet, ...]
    ) -> tuple[Added, int]:
        """What the slots of a set that are in no class and no set muted before have added, and how many they are."""
        view = self._memory.where(**self._conditions(one))
        for number in sorted(classes):
            tags = self._exhibit.classes.every[number]
            view = view.without(**{name: getattr(tags, name) for name in self._exhibit.classes.by})
        for other in before:
            view = view.without(**self._conditions(other))
        return view.added(layer), view.slots(layer)

    def _conditions(self, one: MuteSet) -> dict[str, Any]:
        conditions: dict[str, Any] = {name: list(values) for name, values in one.tags}
        if one.steps:
            conditions["step"] = range(one.steps[0], min(one.steps[1], self._memory.steps))
        if one.positions:
            first, end = one.positions
            conditions[POSITION] = self._positions[(self._positions >= first) & (self._positions < end)]
            if not len(conditions[POSITION]):
                raise Refused(f"no position from {first:,} to {end - 1:,} was trained on")
        return conditions

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        """Positions that training has come by, ascending."""
        if POSITION not in self._memory.tags:
            raise Refused(f"the run has no tag {POSITION!r}")
        found: NDArray[np.int64] = self._memory.seen(self._memory.layers[0], by=POSITION)[POSITION]
        return found


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


def _worth_showing(before: Tensor, after: Tensor) -> list[int]:
    """The likeliest tokens before, then those that became likely."""
    most = min(LIKELIEST, len(before))
    became: list[int] = after.topk(min(4, most)).indices.tolist()
    first = [token for token in before.topk(most).indices.tolist() if token not in became][: most - len(became)]
    return sorted({*first, *became}, key=lambda token: -float(before[token]))

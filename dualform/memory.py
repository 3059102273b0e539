"""A recorded run, opened for questions; and views of it, which answer the same questions.

    memory = dualform.load("runs/mnist")
    memory.verify()                                  # is the dual form the model? how exactly?
    memory.attend(model, images)["layers.2"].top(10)
    memory.without(task="fashion").model(model)      # the model with those slots muted
    memory.until(step=1000).model(model)             # the model as it was

A view keeps the coefficients of the full run, under Adam its second moments too: `where` and `without`
choose among the recorded contributions, they do not retrain. The parts of a partition add up to the whole
once the initial part is counted once. Parameters that were not recorded (norms, convolutions) keep their
final values in `where` and `without`; `until` takes those of the last snapshot before it.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dualform.certificate import Certificate, LayerCertificate
from dualform.errors import NotRecorded, QueryError, UnknownName, listing
from dualform.query.cancelling import cancelled
from dualform.query.certify import audited_steps, certify
from dualform.query.coefficients import Ledger, rule_of
from dualform.query.directions import directions
from dualform.query.distance import TOLERANCE
from dualform.query.groups import By
from dualform.query.queries import match_modules, queries_of
from dualform.query.rebuild import rebuild, weights
from dualform.query.scan import Slots
from dualform.query.scope import Scope
from dualform.query.seen import seen
from dualform.query.selection import Selection, condition
from dualform.query.shares import check_room, groups_of, shares
from dualform.query.sketch import Sketches
from dualform.query.state import as_map, stored_tensor
from dualform.query.stored import wide
from dualform.shares import Shares
from dualform.spotlight import Spotlight
from dualform.store import Run, Shard, Where, clean_name, summary, summary_lines
from dualform.table import Table


def load(path: Where) -> "Memory":
    """Open a recorded run: `memory = dualform.load("runs/mnist")`, or of a backend. Reads headers, not data.

    Of a damaged run, what comes before the damage is opened, with a warning.
    """
    run = Run(path)
    if run.unread:
        warnings.warn(f"{run.unread}; what comes after step {run.steps} is left out", stacklevel=2)
    return Memory(run)


class Memory:
    """A run, or a view of one. Made by `dualform.load`."""

    def __init__(
        self,
        run: Run,
        selection: Selection | None = None,
        ledger: Ledger | None = None,
        sketches: Sketches | None = None,
    ) -> None:
        self._run = run
        self._selection = selection or Selection(run.steps)
        self._ledger = ledger or Ledger(run)
        self._sketches = sketches or Sketches(run)
        self._scope = Scope(run, self._selection, self._ledger, self._sketches)
        self._certificate: Certificate | None = None

    # What there is

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def layers(self) -> list[str]:
        return list(self._run.layers)

    @property
    def steps(self) -> int:
        """Steps of the run, or of the view."""
        return self._selection.until

    @property
    def tags(self) -> dict[str, str]:
        """Names of the tags, with the kind of each: int, float, bool or string."""
        return dict(self._run.tags)

    @property
    def about(self) -> dict[str, Any]:
        """What was said of the run when it was recorded."""
        return dict(self._run.manifest.about)

    @property
    def merged_by(self) -> str | None:
        """The tag over whose visits keys were summed up; None: every slot is there."""
        return self._run.manifest.storage.merge

    def slots(self, layer: str) -> int:
        """How many slots of a layer this memory, or view, holds."""
        self._check_layer(layer)
        return sum(len(block) for block in self._scope.slots(layer).scan(self._selection))

    def seen(self, layer: str, by: By) -> Table:
        """When a layer's slots were seen: `memory.seen("layers.2", by="task")` has visits, first and last step.

        Only values that slots of this memory, or view, have. The steps of a merged memory are those of its sums.
        """
        self._check_layer(layer)
        return Table(seen(self._scope.slots(layer), self._selection, self._scope.grouping(layer, by)))

    @property
    def unrecorded(self) -> list[str]:
        """Parameters that are in the snapshots but in no recorded layer: views cannot mute them."""
        recorded = {part.parameter for layer in self._run.layers.values() for part in layer.parts}
        prefix = "state/parameters/"
        names = (name.removeprefix(prefix) for name in self._run.shards[0].names(prefix))
        return sorted(name for name in names if name not in recorded)

    # Views

    def where(self, **tags: Any) -> "Memory":
        """Only slots with these tags: `memory.where(task="mnist", label=[3, 5])`; also `step=`, `slot=`."""
        return self._view(self._selection.narrowed(condition(self._run, tags, inverted=False)))

    def without(self, **tags: Any) -> "Memory":
        """All slots but those with these tags: `memory.without(label=9)`."""
        return self._view(self._selection.narrowed(condition(self._run, tags, inverted=True)))

    def until(self, step: int) -> "Memory":
        """The run after `step` steps: its slots, with the coefficients they had then."""
        if not 0 <= step <= self._selection.until:
            raise QueryError(f"step must be between 0 and {self._selection.until}, not {step}")
        ends = [shard.info.last_step for shard in self._run.shards]
        if self.merged_by and step not in ends:
            raise NotRecorded(f"a merged memory can go back to where it was synced only: steps {listing(ends)}")
        return self._view(Selection(step, self._selection.conditions))

    def _view(self, selection: Selection) -> "Memory":
        return Memory(self._run, selection, self._ledger, self._sketches)

    # Questions

    def attend(
        self, model: nn.Module | Mapping[str, Tensor], inputs: Any = None, *, rows: int | slice | None = None
    ) -> Spotlight:
        """The spotlight of test inputs: `memory.attend(model, images)`.

        The model runs once, in eval mode and without gradients, to get each layer's queries; it is used
        as it is, so pass `view.model(model)` for the queries of a muted model. A dict of inputs is passed
        as keyword arguments, a tuple as positional ones. `rows` picks along the second dimension of
        queries with more than two, such as the last token: `rows=-1`. Instead of a model and inputs, a
        dict of queries will do: `memory.attend({"layers.2": q})`.
        """
        if isinstance(model, nn.Module):
            found = queries_of(model, self._run.layers, inputs, rows)
            note = self._compare(model)
            aim = partial(directions, model, self._run.layers, inputs, rows)
        else:
            note, found, aim = None, dict(model), None
        prepared = {}
        for name, given in found.items():
            self._check_layer(name)
            layer = self._run.layers[name]
            if given.shape[-1] != layer.d_in:
                raise QueryError(f"a query of layer {name!r} has {layer.d_in} entries, this one has {given.shape[-1]}")
            prepared[name] = given.detach().to("cpu", wide(self._run)).reshape(-1, layer.d_in)
        return Spotlight(self._scope, prepared, note, aim)

    def weights(self, layer: str) -> dict[str, Tensor]:
        """A layer's parameters, summed up from the initial part and the slots of this view."""
        self._check_layer(layer)
        return self._sum_up(layer, self._run.shards[0])

    def added(self, layer: str) -> dict[str, Tensor]:
        """What the slots of this view have added to a layer's trained parameters, in float64: no initial part."""
        self._check_layer(layer)
        slots = self._scope.slots(layer)
        found = rebuild(self._run, self._ledger, slots, self._selection, self._run.shards[0])
        return {part.parameter: as_map(slots.layer, found[part].slots) for part in slots.layer.trained}

    def shares(
        self,
        by: By = ("task", "label"),
        progress: Callable[[str], None] = lambda layer: None,
        *,
        most_bytes: int = 2 << 30,
    ) -> Shares:
        """What each group of slots has added to all parameters: `memory.shares(by="label").model(model, without=[9])`.

        Reads all slots once; from then on, to mute any set of groups is to subtract their matrices. It takes room
        for a copy of the recorded parameters for each group: if that is more than `most_bytes`, it raises at once.
        `progress` is called with each layer's name as its turn comes.
        """
        for layer in self._run.layers.values():
            rule_of(self._run, layer)  # raises where there are keys only
        grouping = groups_of(self._run, by)
        check_room(self._run, grouping, most_bytes)
        found = {}
        for name in self._run.layers:
            progress(name)
            found[name] = shares(self._run, self._ledger, self._scope.slots(name), self._selection, grouping)
        return Shares(Table(grouping.columns), self._run.layers, found, self._assembled, summed_up=self._is_summed_up())

    def model(self, model: nn.Module) -> nn.Module:
        """A copy of the model with the parameters of this view: `memory.without(label=9).model(model)`.

        The model passed gives the architecture only. With all slots up to a step, the nearest snapshot
        before it serves as the start; a view that leaves slots out is summed up from the beginning.
        """
        match_modules(model, self._run.layers)  # before anything is read
        start = self._run.shards[0] if self._selection.conditions else self._snapshot
        parameters: dict[str, Tensor] = {}
        if self._is_summed_up():
            for name in self._run.layers:
                parameters |= self._sum_up(name, start)
        return self._assembled(model, parameters)

    @property
    def _snapshot(self) -> Shard:
        """The last one that this view may know of."""
        return self._run.snapshot(self._selection.until)

    def _is_summed_up(self) -> bool:
        """Whether the parameters of this view are in no snapshot."""
        return bool(self._selection.conditions) or self._snapshot.info.last_step < self._selection.until

    def _assembled(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the model with these parameters, and all others from the last snapshot."""
        match_modules(model, self._run.layers)
        result, state = copy.deepcopy(model), _state(self._snapshot)
        _load_state(result, state | {name: one.to(state[name].dtype) for name, one in parameters.items()})
        return result

    def _sum_up(self, layer: str, start: Shard) -> dict[str, Tensor]:
        found = weights(self._run, self._ledger, self._scope.slots(layer), self._selection, start)
        dtypes = {name: stored_tensor(self._run.shards[0], f"state/parameters/{name}").dtype for name in found}
        return {name: tensor.to(dtypes[name]) for name, tensor in found.items()}

    def verify(self, progress: Callable[[str], None] = lambda layer: None) -> Certificate:
        """Read every byte and measure the distance between dual and primal form, layer by layer.

        Of the whole run, whatever the view. `progress` is called with each layer's name as its turn comes.
        """
        if self._certificate is None:
            self._certificate = self._verify(progress)
        return self._certificate

    def _verify(self, progress: Callable[[str], None]) -> Certificate:
        for shard in self._run.shards:
            shard.check()
        storage = self._run.manifest.storage
        layers: dict[str, LayerCertificate] = {}
        if storage.values:
            for name, layer in self._run.layers.items():
                progress(name)
                layers[name] = self._certify(Slots(self._run, layer))
        return Certificate(
            layers=layers,
            tolerance=TOLERANCE[storage.dtype],
            steps=self._run.steps,
            steps_certified=self._run.snapshot(self._run.steps).info.last_step,
            steps_audited=audited_steps(self._run),
            worst_residual=self.summary()["worst_residual"],
            keys_only=not storage.values,
            unread=self._run.unread,
        )

    def _certify(self, slots: Slots) -> LayerCertificate:
        found = LayerCertificate(*certify(self._run, self._ledger, slots))
        if self._scope.elementwise(slots.layer.name) and not found.ok(TOLERANCE[self._run.manifest.storage.dtype]):
            return replace(found, cancelled=cancelled(self._run, slots.layer))
        return found

    def _compare(self, model: nn.Module) -> str | None:
        """Whether a model's weights are those the run ends with."""
        final = self._run.snapshot(self._run.steps)
        parameters = {clean_name(name): p for name, p in model.named_parameters()}
        for layer in self._run.layers.values():
            for part in layer.parts:
                there = stored_tensor(final, f"state/parameters/{part.parameter}")
                if not torch.equal(parameters[part.parameter].detach().cpu(), there):
                    return f"the model's {part.parameter!r} is not the one this run ends with (step {self._run.steps})"
        return None

    def _check_layer(self, layer: str) -> None:
        if layer not in self._run.layers:
            raise UnknownName("layer", layer, self._run.layers)

    def summary(self) -> dict[str, Any]:
        """What there is, as data: layers, slots, steps, bytes, tags, how recording ended."""
        return summary(self._run)

    def _lines(self) -> dict[str, str]:
        lines = summary_lines(self._run)
        if self._selection != Selection(self._run.steps):
            lines["view"] = _describe(self._selection)
        lines["certificate"] = self._certificate.headline if self._certificate else "not measured yet: verify()"
        return lines

    def __repr__(self) -> str:
        return "\n".join(f"{name:<12}{value}" for name, value in self._lines().items())

    def _repr_html_(self) -> str:
        cells = ((escape(name), escape(value)) for name, value in self._lines().items())
        return "<table>" + "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells) + "</table>"


def _describe(selection: Selection) -> str:
    """A view in words: `first 100 steps, task in ('mnist',), not label in (3, 5)`."""
    parts = [f"first {selection.until:,} steps"]
    for one in selection.conditions:
        words = " and ".join(f"{name} in {values}" for name, values in one.values.items())
        parts.append(f"not ({words})" if one.inverted else words)
    return ", ".join(parts)


def _state(snapshot: Shard) -> dict[str, Tensor]:
    """All parameters and buffers of a snapshot, by name."""
    state = {}
    for prefix in ("state/parameters/", "state/buffers/"):
        for name in snapshot.names(prefix):
            state[name.removeprefix(prefix)] = stored_tensor(snapshot, name)
    return state


def _load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            stored = state.get(clean_name(name))
            if stored is None:
                raise QueryError(f"the model has {clean_name(name)!r}, which the run does not know")
            if stored.shape != tensor.shape:
                shapes = f"{tuple(tensor.shape)}, in the run {tuple(stored.shape)}"
                raise QueryError(f"the model's {clean_name(name)!r} has shape {shapes}")
            tensor.copy_(stored)

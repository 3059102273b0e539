"""Decide once what a recording will do, and pass it on: which layers, by which optimisers, stored how.

    plan = make_plan(model, [optimizer], "*", (), Storage(), about={})
    plan.layers[0].name, plan.optimizers[0].rule, plan.manifest

Nothing of a plan changes while it is carried out, and making one does not touch the model.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from inspect import unwrap
from math import prod
from secrets import token_hex
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule, known, known_as, registered_base, registered_name
from dualform.errors import RecordingError
from dualform.kinds import candidates
from dualform.recorder.budget import within_budget
from dualform.recorder.layers import Names, RecordedLayer, choose_layers, fitting, owners_of
from dualform.recorder.rest import holders, other_parameters, skipped_modules
from dualform.recorder.snapshot import Snapshots, State
from dualform.store import Manifest, Parameter, Storage
from dualform.store import Optimizer as Description
from dualform.store.coverage import SNAPSHOTS_ONLY, Coverage, coverage
from dualform.store.schema import Repetition

_MAX_MISSED = 8  # layers that a warning names
_BYTES = 4  # of a number, as nearly all models have them
_REMEDY = "Pass values=False to record keys only: attention weights work, outputs do not"
_REGISTER = "register its algebra with dualform.algebra.register(...), as docs/guides/optimisers.md shows"
_REFUSED = {  # why no algebra could be registered, and what works instead
    torch.optim.LBFGS: "how far it goes is found by trying several losses a step, and is no linear function of "
    f"gradients. {_REMEDY}",
    torch.optim.SparseAdam: "it steps with sparse gradients, which are not recorded. Make them dense (nn.Embedding "
    "without sparse=True) and take torch.optim.Adam",
}


@dataclass(frozen=True)
class RecordedOptimizer:
    """An optimiser, and the recorded layers that it steps."""

    number: int
    optimizer: Optimizer
    rule: Rule | None  # None: only keys are recorded, so that any optimiser will do
    layers: tuple[RecordedLayer, ...]


@dataclass(frozen=True)
class RecordingPlan:
    """What will be recorded, and what `layers="*"` had to leave out, with the reason."""

    model: nn.Module
    optimizers: tuple[RecordedOptimizer, ...]
    layers: tuple[RecordedLayer, ...]
    skipped: Mapping[str, str]
    manifest: Manifest
    provenance: bool = True  # whether to prove whose rows are
    carried: Callable[[], State] = dict  # what a training hands on from step to step, besides the model's state

    @cached_property
    def coverage(self) -> Coverage:
        """What will be covered, as far as can be said before the first step shows how much room there is."""
        trained = (other.parameter for other in self.manifest.others if self.storage.values)
        sizes = {p.name: prod(p.shape) * _BYTES for p in trained if p.optimizer is not None}
        return coverage(self.manifest, within_budget(sizes))

    @property
    def missed(self) -> str:
        """Layers with a matrix that are not recorded, and whatever is known by snapshots only; empty: there is none.

        Norms and biases that are accounted for are in the coverage, and need no warning; nor do they where keys alone
        are recorded.
        """
        unknown = self.coverage.parameters(SNAPSHOTS_ONLY) if self.storage.values else []
        large = {name for parameter in unknown for name in holders(parameter)}
        matrices = {
            candidate.name
            for candidate in candidates(self.model)
            if any(parameter.dim() > 1 for parameter in candidate.module.parameters())
        } - {layer.name for layer in self.layers}
        names = [name for name in self.skipped if name in large | matrices]
        shown = "; ".join(f"{name}: {self.skipped[name]}" for name in names[:_MAX_MISSED])
        more = f"; and {len(names) - _MAX_MISSED} more (recorder.skipped)" if len(names) > _MAX_MISSED else ""
        return f"{shown}{more}. {self.coverage}" if names else ""

    @property
    def storage(self) -> Storage:
        return self.manifest.storage

    @cached_property
    def magnified(self) -> frozenset[str]:
        """Layers whose optimiser magnifies rounding, so that gradients have to be summed up again just as torch did."""
        optimizers = (stepped for stepped in self.optimizers if stepped.rule and stepped.rule.magnifies_rounding)
        return frozenset(layer.name for stepped in optimizers for layer in stepped.layers)

    @cached_property
    def idle_lines(self) -> dict[str, tuple[float, ...]]:
        """The ledger lines of a step in which no parameter of a layer is stepped."""
        used = (parameter for parameter in self.manifest.parameters if parameter.trained)
        return {parameter.name: self._idle_line(parameter) for parameter in used}

    @cached_property
    def other_idle_lines(self) -> dict[str, tuple[float, ...]]:
        """And those of parameters that no layer uses."""
        others = (other.parameter for other in self.manifest.others)
        return {parameter.name: self._idle_line(parameter) for parameter in others if parameter.trained}

    def _idle_line(self, parameter: Parameter) -> tuple[float, ...]:
        assert parameter.optimizer is not None
        return (0.0,) * (1 + len(self.manifest.optimizers[parameter.optimizer].columns))

    def of_recipe(self, recipe: Repetition, stored: Names, carried: Callable[[], State]) -> "RecordingPlan":
        """Return the plan of a training that can be run again, so that slots need not be stored.

        Args:
            recipe: What it takes to run it again.
            stored: The layers whose slots are stored all the same. Of layers that share parameters, all are or none.
            carried: Returns what the training hands on from step to step.
        """
        chosen = {name for names in fitting(stored, [layer.name for layer in self.layers]).values() for name in names}

        def described(layer: RecordedLayer) -> RecordedLayer:
            return replace(layer, description=replace(layer.description, stored=chosen.issuperset(layer.family)))

        layers = tuple(map(described, self.layers))
        optimizers = tuple(replace(o, layers=tuple(map(described, o.layers))) for o in self.optimizers)
        manifest = replace(self.manifest, layers=tuple(layer.description for layer in layers), recipe=recipe)
        return replace(self, layers=layers, optimizers=optimizers, manifest=manifest, carried=carried)

    def snapshots(self) -> Snapshots:
        """Return what copies the model and the optimisers."""
        return Snapshots(self.model, [stepped.optimizer for stepped in self.optimizers], self.carried)


def make_plan(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    layers: Names,
    exclude: Names,
    storage: Storage,
    about: Mapping[str, Any],
    provenance: bool = True,
) -> RecordingPlan:
    """Decide what is recorded; raises for a layer named outright that cannot be, and for an unknown optimiser."""
    chosen, obstacles = choose_layers(model, optimizers, layers, exclude, storage)
    others = other_parameters(model, owners_of(model, optimizers), chosen, obstacles)
    rules = [registered_rule(optimizer) if storage.values else None for optimizer in optimizers]
    manifest = Manifest(
        run=token_hex(8),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        software=f"torch {torch.__version__}, python {sys.version.split()[0]}",
        storage=storage,
        optimizers=tuple(
            Description(optimizer_name(optimizer), rule.columns) if rule else Description(type(optimizer).__name__, ())
            for optimizer, rule in zip(optimizers, rules, strict=True)
        ),
        layers=tuple(layer.description for layer in chosen),
        about=dict(about),
        others=others,
        frozen_numbers=sum(p.numel() for p in model.parameters() if not p.requires_grad),
    )
    recorded = tuple(
        RecordedOptimizer(index, optimizer, rule, tuple(layer for layer in chosen if layer.optimizer == index))
        for index, (optimizer, rule) in enumerate(zip(optimizers, rules, strict=True))
    )
    return RecordingPlan(model, recorded, chosen, skipped_modules(obstacles, others), manifest, provenance)


def registered_rule(optimizer: Optimizer) -> Rule:
    """Return the algebra of an optimiser; raises if its class is not registered."""
    return RULES[optimizer_name(optimizer)]


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the name of the registered class that an optimiser is of, or derived from without a step of its own."""
    own, base = type(optimizer), registered_base(type(optimizer))
    own_name = f"{own.__module__}.{own.__name__}"
    if base is None:
        refused = next((why for kind, why in _REFUSED.items() if isinstance(optimizer, kind)), None)
        if refused is not None:
            raise RecordingError(f"{own_name} has no dual form: {refused}")
        raise RecordingError(
            f"no exact dual form is known for {own_name}; choose from {', '.join(known())}, or {_REGISTER}. {_REMEDY}"
        )
    # torch wraps `step` when an optimiser is made; below that it is the same function, or it is not
    if unwrap(own.step) is not unwrap(base.step):
        raise RecordingError(
            f"{own_name} overrides the step of {known_as(base)}, so its dual form is not known. {_REMEDY}"
        )
    return registered_name(base)

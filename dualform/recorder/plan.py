"""Decide once what a recording will do, and pass it on: which layers, by which optimisers, stored how.

    plan = make_plan(model, [optimizer], "*", Storage(), about={})
    plan.layers[0].name, plan.optimizers[0].rule, plan.manifest

Nothing of a plan changes while it is carried out, and making one does not touch the model.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from inspect import unwrap
from secrets import token_hex
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule, known, known_as, registered_base, registered_name
from dualform.errors import RecordingError
from dualform.recorder.layers import RecordedLayer, choose_layers
from dualform.recorder.snapshot import snapshot
from dualform.store import Column, Manifest, Storage
from dualform.store import Optimizer as Description

_REMEDY = "Pass values=False to record keys only: attention weights work, outputs do not"


@dataclass(frozen=True)
class RecordedOptimizer:
    """An optimiser, and the recorded layers that it steps."""

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

    @property
    def storage(self) -> Storage:
        return self.manifest.storage

    @cached_property
    def idle_lines(self) -> dict[str, tuple[float, ...]]:
        """The ledger lines of a step in which no parameter is stepped."""
        return {
            parameter.name: (0.0,) * (1 + len(self.manifest.optimizers[parameter.optimizer].columns))
            for parameter in self.manifest.parameters
            if parameter.optimizer is not None
        }

    def state(self) -> dict[str, Column]:
        """Copy the model and the optimisers as they are now."""
        return snapshot(self.model, [stepped.optimizer for stepped in self.optimizers])


def make_plan(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    layers: str | Iterable[str],
    storage: Storage,
    about: Mapping[str, Any],
    provenance: bool = True,
) -> RecordingPlan:
    """Decide what is recorded; raises for a layer named outright that cannot be, and for an unknown optimiser."""
    chosen, skipped = choose_layers(model, optimizers, layers, storage)
    rules = [registered_rule(optimizer) if storage.values else None for optimizer in optimizers]
    manifest = Manifest(
        run=token_hex(8),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        software=f"torch {torch.__version__}, python {sys.version.split()[0]}",
        storage=storage,
        optimizers=tuple(
            Description(_registered_name(optimizer), rule.columns)
            if rule
            else Description(type(optimizer).__name__, ())
            for optimizer, rule in zip(optimizers, rules, strict=True)
        ),
        layers=tuple(layer.description for layer in chosen),
        about=dict(about),
    )
    recorded = tuple(
        RecordedOptimizer(optimizer, rule, tuple(layer for layer in chosen if layer.optimizer == index))
        for index, (optimizer, rule) in enumerate(zip(optimizers, rules, strict=True))
    )
    return RecordingPlan(model, recorded, chosen, skipped, manifest, provenance)


def registered_rule(optimizer: Optimizer) -> Rule:
    """Return the algebra of an optimiser; raises if its class is not registered."""
    return RULES[_registered_name(optimizer)]


def _registered_name(optimizer: Optimizer) -> str:
    """Return the name of the registered class that an optimiser is of, or derived from without a step of its own."""
    own, base = type(optimizer), registered_base(type(optimizer))
    own_name = f"{own.__module__}.{own.__name__}"
    if base is None:
        raise RecordingError(f"no exact dual form is known for {own_name}; choose from {', '.join(known())}. {_REMEDY}")
    # torch wraps `step` when an optimiser is made; below that it is the same function, or it is not
    if unwrap(own.step) is not unwrap(base.step):
        raise RecordingError(
            f"{own_name} overrides the step of {known_as(base)}, so its dual form is not known. {_REMEDY}"
        )
    return registered_name(base)

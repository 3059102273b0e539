"""Find out what of a model is not recorded, and why: every trainable parameter that no recorded layer uses."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from dualform.errors import RecordingError
from dualform.kinds import candidates
from dualform.kinds.names import named_parameters
from dualform.recorder.layers import FROZEN, RecordedLayer
from dualform.recorder.snapshot import is_storable
from dualform.store import Parameter
from dualform.store.schema import OtherParameter

_NO_OPTIMIZER = "no optimiser that was passed steps it"
_LEFT_OUT = "its layer was left out by layers= or exclude="
_OTHER_OPTIMIZER = "another optimiser steps it than the weight of its layer"
_NO_LAYER = "its module is recorded, but does something else with it"


def other_parameters(
    model: nn.Module, owners: Mapping[int, int], layers: Sequence[RecordedLayer], obstacles: Mapping[str, str]
) -> tuple[OtherParameter, ...]:
    """Return the trainable parameters that no recorded layer uses.

    Args:
        model: The model.
        owners: The number of the optimiser that steps each parameter, by the parameter's id.
        layers: What is recorded.
        obstacles: Why layers of a known kind cannot be, by name.
    """
    used = {use.parameter.name for layer in layers for use in layer.description.uses}
    reasons = {id(candidate.module): obstacles.get(candidate.name, _LEFT_OUT) for candidate in candidates(model)}
    reasons |= {id(layer.module): _NO_LAYER for layer in layers if layer.name not in obstacles}
    recorded = {id(layer.module) for layer in layers}
    apart = {id(p) for one in candidates(model) if id(one.module) in recorded for p in one.parameters.values()}
    modules = dict(model.named_modules())
    others = []
    for (own_name, parameter), (name, _) in zip(model.named_parameters(), named_parameters(model), strict=True):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise RecordingError(f"{name!r} has no shape yet; run the model once before recording")
        nothing = not is_storable(parameter) or not parameter.numel()  # in no snapshot, either
        if nothing or not parameter.requires_grad or name in used:
            continue
        owner = owners.get(id(parameter))
        reason = _NO_OPTIMIZER if owner is None else _reason(own_name, modules, reasons)
        if reason == _NO_LAYER and id(parameter) in apart:
            reason = _OTHER_OPTIMIZER
        others.append(OtherParameter(Parameter(name, tuple(parameter.shape), owner), reason))
    return tuple(others)


def _reason(parameter: str, modules: Mapping[str, nn.Module], reasons: Mapping[int, str]) -> str:
    """Return why the module that holds a parameter is not recorded; a parametrised one holds it further down."""
    name = parameter.rpartition(".")[0]
    holder = modules[name]
    while name and id(modules[name]) not in reasons and ".parametrizations" in f".{name}":
        name = name.rpartition(".")[0]
    return reasons.get(id(modules[name]), f"{type(holder).__name__} is of no known kind")


def skipped_modules(obstacles: Mapping[str, str], others: Sequence[OtherParameter]) -> dict[str, str]:
    """Return by name, with the reason, what had to be left out: not what is frozen, nor what the user left out."""
    skipped = {name: reason for name, reason in obstacles.items() if reason != FROZEN}
    for other in others:
        name = other.parameter.name.rpartition(".")[0] or other.parameter.name
        if other.reason not in (_LEFT_OUT, _OTHER_OPTIMIZER) and not any(holder in skipped for holder in holders(name)):
            skipped[name] = other.reason
    return skipped


def holders(name: str) -> Iterator[str]:
    """Yield a name, and those of the modules that hold it, from the inside out: `a.b.weight`, `a.b`, `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]

"""Which layers are recorded: found, matched against the user's wish, and the rest named with a reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecordingError, UnknownName
from dualform.store import Layer, Part, clean_name

_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class Recorded:
    """A layer to be recorded: its module and its description."""

    module: nn.Module
    layer: Layer


@dataclass(frozen=True)
class Plan:
    """What will be recorded, and what `layers="*"` had to leave out, with the reason."""

    recorded: tuple[Recorded, ...]
    skipped: dict[str, str]


def plan(model: nn.Module, optimizers: Sequence[Optimizer], layers: str | Iterable[str]) -> Plan:
    """Decide, without touching the model. A layer named outright that cannot be recorded raises."""
    _refuse_parallel(model)
    owners = _owners(optimizers)
    linear = {clean_name(name): module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    patterns = [layers] if isinstance(layers, str) else list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise UnknownName("linear layer", pattern, linear)
    wanted = [name for name in linear if any(fnmatchcase(name, pattern) for pattern in patterns)]
    reasons = {name: _obstacle(model, name, linear[name], owners) for name in wanted}
    for name in wanted:
        if name in patterns and reasons[name]:
            raise RecordingError(f"layer {name!r} cannot be recorded: {reasons[name]}")
    recorded = tuple(_describe(name, linear[name], owners) for name in wanted if not reasons[name])
    if not recorded:
        raise RecordingError(f"no layer of this model can be recorded: {reasons or 'it has no nn.Linear'}")
    return Plan(recorded, {name: reason for name, reason in reasons.items() if reason})


def _refuse_parallel(model: nn.Module) -> None:
    for module in model.modules():
        if any(base.__name__ in _PARALLEL for base in type(module).__mro__):
            raise RecordingError(
                f"{type(module).__name__} is not supported: its gradients come from other replicas too. "
                "Record the plain model in one process"
            )


def _owners(optimizers: Sequence[Optimizer]) -> dict[int, int]:
    """id of a parameter -> which optimiser steps it."""
    owners: dict[int, int] = {}
    for index, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in owners:
                    raise RecordingError("a parameter is given to the optimisers twice; give it to one group")
                owners[id(parameter)] = index
    return owners


def _obstacle(model: nn.Module, name: str, module: nn.Linear, owners: dict[int, int]) -> str | None:
    """Why a layer cannot be recorded exactly; None if it can."""
    parent = model.get_submodule(_raw_parent(model, module))
    if isinstance(parent, nn.MultiheadAttention):
        return "MultiheadAttention uses its weight without calling it"
    if type(module).forward is not nn.Linear.forward:
        return f"{type(module).__name__} overrides nn.Linear's forward"
    if "weight" not in module._parameters:
        return "its weight is parametrised, so it is not itself trained"
    if isinstance(module.weight, nn.parameter.UninitializedParameter):
        return "it has no shape yet; run the model once before recording"
    if not module.weight.requires_grad:
        return "its weight is frozen"
    if id(module.weight) not in owners:
        return "its weight is not in the optimiser"
    uses = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    if uses[id(module.weight)] > 1 or (module.bias is not None and uses[id(module.bias)] > 1):
        return "its weight is tied to another module's"
    if module.bias is not None and owners.get(id(module.bias), owners[id(module.weight)]) != owners[id(module.weight)]:
        return "its weight and its bias belong to different optimisers"
    return None


def _raw_parent(model: nn.Module, wanted: nn.Module) -> str:
    path: str = next(name for name, module in model.named_modules() if module is wanted)
    return path.rpartition(".")[0]


def _describe(name: str, module: nn.Linear, owners: dict[int, int]) -> Recorded:
    prefix = f"{name}." if name else ""
    parts = [Part(f"{prefix}weight", (0, module.in_features), owners[id(module.weight)])]
    if module.bias is not None:
        owner = owners.get(id(module.bias)) if module.bias.requires_grad else None
        parts.append(Part(f"{prefix}bias", None, owner))
    return Recorded(module, Layer(name, "Linear", module.in_features, module.out_features, tuple(parts)))

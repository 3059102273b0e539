"""Which layers are recorded: found, matched against the user's wish, and the rest named with a reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecordingError, UnknownName
from dualform.kinds import Candidate, Kind, candidates
from dualform.store import Layer, Parameter, Storage, Use, clean_name

_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class Recorded:
    """A layer to be recorded: its module and its description."""

    module: nn.Module
    kind: Kind
    layer: Layer

    @cached_property
    def _own_names(self) -> list[str]:
        return [use.parameter.name.rpartition(".")[2] for use in self.layer.trained]

    def trained(self) -> list[nn.Parameter]:
        """The parameters of the layer's trained uses, as they are now."""
        own = self.module._parameters  # past nn.Module's search by name, which is slow for what every step asks
        found = [parameter for name in self._own_names if (parameter := own.get(name)) is not None]
        if len(found) < len(self._own_names):
            raise RecordingError(f"a parameter of layer {self.layer.name!r} was taken away while recording")
        return found


@dataclass(frozen=True)
class Plan:
    """What will be recorded, and what `layers="*"` had to leave out, with the reason."""

    recorded: tuple[Recorded, ...]
    skipped: dict[str, str]


def plan(model: nn.Module, optimizers: Sequence[Optimizer], layers: str | Iterable[str], storage: Storage) -> Plan:
    """Decide, without touching the model. A layer named outright that cannot be recorded raises."""
    _refuse_parallel(model)
    owners = _owners(model, optimizers)
    known = {one.name: one for one in candidates(model)}
    patterns = [layers] if isinstance(layers, str) else list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise UnknownName("linear layer", pattern, known)
    wanted = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    reasons = {name: _obstacle(model, known[name], owners, storage) for name in wanted}
    for name in wanted:
        if name in patterns and reasons[name]:
            raise RecordingError(f"layer {name!r} cannot be recorded: {reasons[name]}")
    recorded = tuple(_describe(known[name], owners) for name in wanted if not reasons[name])
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


def _owners(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[int, int]:
    """id of a parameter -> which optimiser steps it."""
    names = {id(parameter): clean_name(name) for name, parameter in model.named_parameters()}
    owners: dict[int, int] = {}
    for index, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in owners:
                    raise RecordingError(
                        f"parameter {names.get(id(parameter), 'of another model')!r} is in two groups of the "
                        "optimisers, so it would be stepped twice; give it to one"
                    )
                owners[id(parameter)] = index
    return owners


def _obstacle(model: nn.Module, one: Candidate, owners: dict[int, int], storage: Storage) -> str | None:
    """Why a layer cannot be recorded exactly; None if it can."""
    if storage.merge and not one.kind.vectors:
        return "its keys are indices, and a merged memory sums up keys of numbers only"
    if one.obstacle is not None:
        return one.obstacle
    if not (one.d_in and one.d_out):
        return "it has no width"
    return _obstacle_of_parameters(model, one, owners)


def _obstacle_of_parameters(model: nn.Module, one: Candidate, owners: dict[int, int]) -> str | None:
    parameters = one.parameters
    weight = parameters.get(next(iter(one.columns)))
    if weight is None:
        return "its weight is parametrised, so it is not itself trained"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "it has no shape yet; run the model once before recording"
    if not weight.requires_grad:
        return "its weight is frozen"
    if id(weight) not in owners:
        return "its weight is not in the optimiser"
    uses = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    if any(uses[id(parameter)] > 1 for parameter in parameters.values()):
        return "its weight is tied to another module's"
    if any(owners.get(id(p), owners[id(weight)]) != owners[id(weight)] for p in parameters.values()):
        return "its weight and its bias belong to different optimisers"
    return None


def _describe(one: Candidate, owners: dict[int, int]) -> Recorded:
    module = one.name if one.module_name is None else one.module_name
    uses = tuple(
        Use(
            Parameter(
                f"{module}.{name}".lstrip("."),
                tuple(parameter.shape),
                owners.get(id(parameter)) if parameter.requires_grad else None,
            ),
            one.columns[name],
        )
        for name, parameter in one.parameters.items()
    )
    layer = Layer(one.name, one.kind.name, one.d_in, one.d_out, one.kind.key_layout(one.d_in), uses)
    return Recorded(one.module, one.kind, layer)

"""Choose the layers to record, by the user's patterns; name the reason for each that has to be left out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecordingError, UnknownName, listing
from dualform.kinds import Candidate, Kind, Probe, candidates
from dualform.kinds.hook import FULLGRAPH
from dualform.kinds.names import named_parameters
from dualform.kinds.probe import ParameterProbe
from dualform.store import Layer, Parameter, Storage, Use

SEED = 20220211  # any number will do, as long as it stays the same
FROZEN = "its weight is frozen"
Names = str | Iterable[str]  # a name, a pattern, or several
_WORKS = (
    "What works: one process, or DistributedDataParallel around the whole model, passed to dualform.record as it is"
)
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class LiveLayer:
    """A layer, and the module of a model that holds it."""

    name: str
    module: nn.Module
    kind: Kind
    description: Layer
    own_names: tuple[str, ...]  # what its module calls the parameters of its trained uses


@dataclass(frozen=True)
class RecordedLayer(LiveLayer):
    """A layer to be recorded."""

    probe: Probe
    family: tuple[str, ...]  # the layers that share parameters with it, or with one that does; itself among them

    @property
    def optimizer(self) -> int | None:
        """The number of the optimiser that steps it."""
        return self.description.trained[0].parameter.optimizer

    @property
    def tied(self) -> bool:
        """Whether there are others in its family."""
        return len(self.family) > 1


def choose_layers(
    model: nn.Module, optimizers: Sequence[Optimizer], layers: Names, exclude: Names, storage: Storage
) -> tuple[tuple[RecordedLayer, ...], dict[str, str]]:
    """Return the layers to record, and those that "*" has to leave out, with the reason.

    A layer named outright that cannot be recorded raises.
    """
    for module in model.modules():
        name = type(module).__name__
        if any(type(parameter).__name__ == "DTensor" for parameter in module._parameters.values()):
            raise RecordingError(f"the parameters of {name} are split between processes. {_WORKS}")
        if any(base.__name__ in _PARALLEL for base in type(module).__mro__):
            part = " around a part of the model" if name == "DistributedDataParallel" else ""
            raise RecordingError(f"{name}{part} is not supported. {_WORKS}")
        if getattr(getattr(module, "dynamo_ctx", None), "fullgraph", False):
            raise RecordingError(f"the model is compiled with fullgraph=True: {FULLGRAPH}")
    owners = owners_of(model, optimizers)
    known = {candidate.name: _of_one_optimizer(candidate, owners) for candidate in candidates(model)}
    named, excluded = fitting(layers, known), {name for names in fitting(exclude, known).values() for name in names}
    asked_for = {name for names in named.values() for name in names} - excluded
    wanted = [name for name in known if name in asked_for]
    reasons = _with_unrecorded_users(known, {name: _obstacle(known[name], owners, storage) for name in wanted}, owners)
    for name in wanted:
        if name in named and reasons[name]:
            raise RecordingError(f"layer {name!r} cannot be recorded: {reasons[name]}")
    names = {id(parameter): name for name, parameter in named_parameters(model)}  # a tied one by its first
    recordable = [known[name] for name in wanted if not reasons[name]]
    chosen = _recorded(recordable, [_describe(candidate, owners, names) for candidate in recordable])
    if not chosen:
        why = reasons or (
            "none is asked for that is not excluded" if known else "none of its modules is of a known kind"
        )
        raise RecordingError(f"no layer of this model can be recorded: {why}")
    return chosen, {name: reason for name, reason in reasons.items() if reason}


def fitting(patterns: Names, known: Collection[str]) -> dict[str, set[str]]:
    """Return the names that each pattern fits; raise for one that fits none."""
    fitting = {}
    several = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else patterns
    for pattern in several:
        if not isinstance(pattern, str):
            raise RecordingError(
                f"layers are chosen by name, or by a pattern such as 'encoder.*', not by {type(pattern).__name__}; "
                f"choose from {listing(known)}"
            )
        fitting[pattern] = {name for name in known if fnmatchcase(name, pattern)}
        if not fitting[pattern] and (known or pattern != "*"):
            raise UnknownName("layer", pattern, known)
    return fitting


def owners_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[int, int]:
    """Return the number of the optimiser that steps each parameter, by the parameter's id."""
    names = {id(parameter): name for name, parameter in named_parameters(model)}
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


def _of_one_optimizer(candidate: Candidate, owners: Mapping[int, int]) -> Candidate:
    """Leave out what another optimiser steps than the weight, as the bias of a matrix that Muon steps.

    Its slots would be in other steps. It is accounted for instead, like what no layer uses.
    """
    parameters = candidate.parameters
    weight = parameters.get(next(iter(candidate.columns)))
    owner = owners.get(id(weight))
    if weight is None or owner is None:
        return candidate
    others = {name for name, parameter in parameters.items() if owners.get(id(parameter), owner) != owner}
    return replace(candidate, columns={n: entries for n, entries in candidate.columns.items() if n not in others})


def _obstacle(candidate: Candidate, owners: Mapping[int, int], storage: Storage) -> str | None:
    """Return why a layer by itself cannot be recorded exactly; None if it can."""
    if storage.merge and not candidate.kind.vectors:
        return "its keys are not stored as rows of numbers, and a merged memory sums up such keys only"
    own = [*candidate.module.parameters(recurse=False)]
    if own and not any(parameter.requires_grad for parameter in own):
        return FROZEN  # whatever else is in the way, as of a class that quantises
    if candidate.obstacle is not None:
        return candidate.obstacle
    if not (candidate.d_in and candidate.d_out):
        return "it has no width"
    parameters = candidate.parameters
    weight = parameters.get(next(iter(candidate.columns)))
    if weight is None:
        return "its weight is parametrised, so it is not itself trained"
    if _is_uninitialised(weight):
        return "it has no shape yet; run the model once before recording"
    if not weight.requires_grad:
        return FROZEN
    if id(weight) not in owners:
        return "its weight is not in the optimiser"
    if len({id(parameter) for parameter in parameters.values()}) < len(parameters):
        return "it uses one parameter twice"
    return None


def _is_uninitialised(parameter: nn.Parameter | None) -> bool:
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def _with_unrecorded_users(
    known: Mapping[str, Candidate], reasons: Mapping[str, str | None], owners: Mapping[int, int]
) -> dict[str, str | None]:
    """Return why layers cannot be recorded, with those that share a parameter with a layer that is not.

    What goes through that layer is in the gradient, too. Whether a module of no known kind uses a parameter it holds
    only the audit can tell: some hold it for its name alone.

    Args:
        known: All layers of a known kind.
        reasons: Why those that are wanted cannot be recorded by themselves; None: they can.
        owners: The number of the optimiser that steps each parameter, by the parameter's id.
    """
    layouts = _layouts(known)
    result = {name: reason or _other_layout(known[name], layouts) for name, reason in reasons.items()}
    while True:
        left_out = [name for name in known if name not in result or result[name]]
        users = {id(p): name for name in reversed(left_out) for p in known[name].parameters.values()}
        found = {
            name: f"its {own} is also used by {users[id(parameter)]!r}, which is not recorded"
            for name in (name for name, reason in result.items() if reason is None)
            for own, parameter in reversed(known[name].parameters.items())  # so that the first is the one that is named
            if parameter.requires_grad and id(parameter) in owners and id(parameter) in users
        }
        if not found:
            return result
        result |= found


Layouts = Mapping[int, Mapping[tuple[str, int], str]]  # by the parameter's id: a layer for each way to lay it out


def _other_layout(candidate: Candidate, layouts: Layouts) -> str | None:
    """Return why a layer's parameter cannot be seen through the vectors of another layer's map; None: it can."""
    for own, parameter in candidate.parameters.items():
        for layout, other in layouts[id(parameter)].items():
            if layout != _layout(candidate, own):
                return f"its {own} is also used by {other!r}, where it is another sort of map"
    return None


def _layouts(known: Mapping[str, Candidate]) -> Layouts:
    layouts: dict[int, dict[tuple[str, int], str]] = {}
    for candidate in known.values():
        sized = {name: p for name, p in candidate.parameters.items() if not _is_uninitialised(p)}
        for own, parameter in sized.items():
            layouts.setdefault(id(parameter), {}).setdefault(_layout(candidate, own), candidate.name)
    return layouts


def _layout(candidate: Candidate, own: str) -> tuple[str, int]:
    """Return what the map of a parameter is like: vectors fit matrices, transposed ones, too; kernels are their kind's.

    Outputs that come in groups make several maps of a parameter.
    """
    shape = candidate.module._parameters[own].shape  # type: ignore[union-attr]
    return candidate.kind.name if len(shape) > 2 else "", 1 if candidate.columns[own] is None else candidate.groups


def _describe(candidate: Candidate, owners: Mapping[int, int], names: Mapping[int, str]) -> Layer:
    uses = tuple(
        Use(
            Parameter(
                names[id(parameter)],
                tuple(parameter.shape),
                owners.get(id(parameter)) if parameter.requires_grad else None,
            ),
            candidate.columns[name],
            1 if candidate.columns[name] is None else candidate.groups,
        )
        for name, parameter in candidate.parameters.items()
    )
    d_in, d_out = candidate.d_in, candidate.d_out
    keys = candidate.keys or candidate.kind.key_layout(d_in)
    return Layer(candidate.name, candidate.kind.name, d_in, d_out, keys, uses)


def _recorded(recordable: Sequence[Candidate], layers: Sequence[Layer]) -> tuple[RecordedLayer, ...]:
    """Put together what is known of the layers to be recorded, and draw the vectors of their probes."""
    # Random numbers of its own: recording must not change the user's. The same for every run: one that
    # was interrupted must measure what an uninterrupted one would.
    generator = torch.Generator().manual_seed(SEED)
    families, known, recorded = _families(layers), dict[Parameter, ParameterProbe](), []
    for candidate, layer in zip(recordable, layers, strict=True):
        probe = Probe(candidate.kind, layer, generator, known)
        known |= probe.parameters
        own = zip(candidate.parameters, layer.uses, strict=True)
        own_names = tuple(name for name, use in own if use.trained)
        recorded.append(
            RecordedLayer(layer.name, candidate.module, candidate.kind, layer, own_names, probe, families[layer.name])
        )
    return tuple(recorded)


def _families(layers: Iterable[Layer]) -> dict[str, tuple[str, ...]]:
    """Return for each layer all that share trained parameters with it, or with one that does."""
    families: dict[str, list[str]] = {}  # by layer; the same list for all that are in it
    users: dict[Parameter, str] = {}
    for layer in layers:
        family = families[layer.name] = [layer.name]
        for parameter in (use.parameter for use in layer.trained):
            related = families[users.setdefault(parameter, layer.name)]
            if related is not family:
                related += family
                families |= dict.fromkeys(family, related)
                family = related
    return {name: tuple(family) for name, family in families.items()}

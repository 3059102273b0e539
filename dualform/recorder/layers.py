"""Choose the layers to record, by the user's patterns; name the reason for each that has to be left out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecordingError, UnknownName, listing
from dualform.kinds import Candidate, Kind, Probe, candidates
from dualform.kinds.hook import FULLGRAPH
from dualform.kinds.names import named_parameters
from dualform.store import Layer, Parameter, Storage, Use

SEED = 20220211  # any number will do, as long as it stays the same
FROZEN = "its weight is frozen"
Names = str | Iterable[str]  # a name, a pattern, or several
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True)
class RecordedLayer:
    """A layer to be recorded."""

    name: str
    module: nn.Module
    kind: Kind
    description: Layer
    probe: Probe

    @property
    def optimizer(self) -> int | None:
        """The number of the optimiser that steps it."""
        return self.description.trained[0].parameter.optimizer

    @cached_property
    def own_names(self) -> list[str]:
        """What its module calls the parameters of its trained uses."""
        return [use.parameter.name.rpartition(".")[2] for use in self.description.trained]


def choose_layers(
    model: nn.Module, optimizers: Sequence[Optimizer], layers: Names, exclude: Names, storage: Storage
) -> tuple[tuple[RecordedLayer, ...], dict[str, str]]:
    """Return the layers to record, and those that "*" has to leave out, with the reason.

    A layer named outright that cannot be recorded raises.
    """
    for module in model.modules():
        if any(base.__name__ in _PARALLEL for base in type(module).__mro__):
            raise RecordingError(
                f"{type(module).__name__} is not supported: its gradients come from other replicas too. "
                "Record the plain model in one process"
            )
        if getattr(getattr(module, "dynamo_ctx", None), "fullgraph", False):
            raise RecordingError(f"the model is compiled with fullgraph=True: {FULLGRAPH}")
    owners = owners_of(model, optimizers)
    known = {candidate.name: candidate for candidate in candidates(model)}
    named, excluded = _fitting(layers, known), {name for names in _fitting(exclude, known).values() for name in names}
    fitting = {name for names in named.values() for name in names} - excluded
    wanted = [name for name in known if name in fitting]
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    reasons = {name: _obstacle(known[name], owners, uses, storage) for name in wanted}
    for name in wanted:
        if name in named and reasons[name]:
            raise RecordingError(f"layer {name!r} cannot be recorded: {reasons[name]}")
    # Random numbers of its own: recording must not change the user's. The same for every run: one that
    # was interrupted must measure what an uninterrupted one would.
    generator = torch.Generator().manual_seed(SEED)
    chosen = tuple(_describe(known[name], owners, generator) for name in wanted if not reasons[name])
    if not chosen:
        why = reasons or ("none is asked for that is not excluded" if known else "it has no nn.Linear")
        raise RecordingError(f"no layer of this model can be recorded: {why}")
    return chosen, {name: reason for name, reason in reasons.items() if reason}


def _fitting(patterns: Names, known: Iterable[str]) -> dict[str, set[str]]:
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
        if not fitting[pattern]:
            raise UnknownName("linear layer", pattern, known)
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


def _obstacle(candidate: Candidate, owners: dict[int, int], uses: Counter[int], storage: Storage) -> str | None:
    """Return why a layer cannot be recorded exactly; None if it can. `uses` counts the modules of each parameter."""
    if storage.merge and not candidate.kind.vectors:
        return "its keys are not stored as rows of numbers, and a merged memory sums up such keys only"
    if candidate.obstacle is not None:
        return candidate.obstacle
    if not (candidate.d_in and candidate.d_out):
        return "it has no width"
    parameters = candidate.parameters
    weight = parameters.get(next(iter(candidate.columns)))
    if weight is None:
        return "its weight is parametrised, so it is not itself trained"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "it has no shape yet; run the model once before recording"
    if not weight.requires_grad:
        return FROZEN
    if id(weight) not in owners:
        return "its weight is not in the optimiser"
    if any(uses[id(parameter)] > 1 for parameter in parameters.values()):
        return "its weight is tied to another module's"
    if any(owners.get(id(parameter), owners[id(weight)]) != owners[id(weight)] for parameter in parameters.values()):
        return "its weight and its bias belong to different optimisers"
    return None


def _describe(candidate: Candidate, owners: dict[int, int], generator: torch.Generator) -> RecordedLayer:
    kind = candidate.kind
    module = candidate.name if candidate.module_name is None else candidate.module_name
    uses = tuple(
        Use(
            Parameter(
                f"{module}.{name}".lstrip("."),
                tuple(parameter.shape),
                owners.get(id(parameter)) if parameter.requires_grad else None,
            ),
            candidate.columns[name],
            1 if candidate.columns[name] is None else candidate.groups,
        )
        for name, parameter in candidate.parameters.items()
    )
    d_in, d_out = candidate.d_in, candidate.d_out
    layer = Layer(candidate.name, kind.name, d_in, d_out, candidate.keys or kind.key_layout(d_in), uses)
    return RecordedLayer(layer.name, candidate.module, kind, layer, Probe(kind, layer, generator))

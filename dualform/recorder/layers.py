"""Which layers are recorded: found, matched against the user's wish, and the rest named with a reason."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from torch import nn
from torch.optim import Optimizer

from dualform.errors import RecordingError, UnknownName
from dualform.nn import LSTM
from dualform.store import Layer, Part, Storage, clean_name

_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
_FORWARD = {"Linear": nn.Linear.forward, "Embedding": nn.Embedding.forward}


@dataclass(frozen=True)
class Recorded:
    """A layer to be recorded: its module and its description."""

    module: nn.Module
    layer: Layer

    @cached_property
    def _own_names(self) -> list[str]:
        return [part.parameter.rpartition(".")[2] for part in self.layer.trained]

    def trained(self) -> list[nn.Parameter]:
        """The parameters of the layer's trained parts, as they are now."""
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


@dataclass(frozen=True)
class _Candidate:
    """A linear map in a model: which of a module's parameters multiply which columns of its key (None: a bias)."""

    name: str
    kind: str
    module: nn.Module
    d_in: int
    d_out: int
    columns: Mapping[str, tuple[int, int] | None]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are there: a bias may be missing, a parametrised weight is no parameter."""
        named = self.module._parameters
        return {name: found for name in self.columns if (found := named.get(name)) is not None}


def plan(model: nn.Module, optimizers: Sequence[Optimizer], layers: str | Iterable[str], storage: Storage) -> Plan:
    """Decide, without touching the model. A layer named outright that cannot be recorded raises."""
    _refuse_parallel(model)
    owners = _owners(model, optimizers)
    known = {one.name: one for one in _candidates(model)}
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


def _candidates(model: nn.Module) -> Iterator[_Candidate]:
    """Every linear map there is, recordable or not."""
    for raw_name, module in model.named_modules():
        name = clean_name(raw_name)
        if isinstance(module, nn.Linear):
            width = module.in_features
            columns: dict[str, tuple[int, int] | None] = {"weight": (0, width), "bias": None}
            yield _Candidate(name, "Linear", module, width, module.out_features, columns)
        elif isinstance(module, nn.Embedding):
            width = module.num_embeddings
            yield _Candidate(name, "Embedding", module, width, module.embedding_dim, {"weight": (0, width)})
        elif isinstance(module, LSTM):
            yield from (_gates(name, module, number) for number in range(module.num_layers))
        elif isinstance(module, nn.LSTM):
            yield _Candidate(name, "fused LSTM", module, 0, 0, {"weight_ih_l0": None})


def _gates(name: str, module: LSTM, number: int) -> _Candidate:
    """All gates of one LSTM layer: one map of [input, previous hidden state]."""
    d_input = module.hidden_size if number else module.input_size
    d_in = d_input + module.hidden_size
    columns = {
        f"weight_ih_l{number}": (0, d_input), f"weight_hh_l{number}": (d_input, d_in),
        f"bias_ih_l{number}": None, f"bias_hh_l{number}": None,
    }  # fmt: skip
    return _Candidate(f"{name}.l{number}".lstrip("."), "LSTM", module, d_in, 4 * module.hidden_size, columns)


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


def _obstacle(model: nn.Module, one: _Candidate, owners: dict[int, int], storage: Storage) -> str | None:
    """Why a layer cannot be recorded exactly; None if it can."""
    if storage.merge and one.kind == "Embedding":
        return "its keys are indices, and a merged memory sums up keys of numbers only"
    return _obstacle_of_kind(model, one) or _obstacle_of_parameters(model, one, owners)


def _obstacle_of_kind(model: nn.Module, one: _Candidate) -> str | None:
    module = one.module
    if one.kind == "fused LSTM":
        return "torch computes its gates where nobody can see them; swap it by dualform.unfuse(model)"
    if not (one.d_in and one.d_out):
        return "it has no width"
    if isinstance(_parent(model, module), nn.MultiheadAttention):
        return "MultiheadAttention uses its weight without calling it"
    if one.kind in _FORWARD and type(module).forward is not _FORWARD[one.kind]:
        return f"{type(module).__name__} overrides nn.{one.kind}'s forward"
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:
            return "max_norm changes its weight in every forward pass"
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq scales its gradient row by row"
        if module.sparse:
            return "its gradient is sparse"
    return None


def _obstacle_of_parameters(model: nn.Module, one: _Candidate, owners: dict[int, int]) -> str | None:
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


def _parent(model: nn.Module, wanted: nn.Module) -> nn.Module:
    path: str = next(name for name, module in model.named_modules() if module is wanted)
    return model.get_submodule(path.rpartition(".")[0])


def _describe(one: _Candidate, owners: dict[int, int]) -> Recorded:
    prefix = one.name.rpartition(".")[0] if one.kind == "LSTM" else one.name
    parts = tuple(
        Part(
            f"{prefix}.{name}".lstrip("."),
            one.columns[name],
            owners.get(id(parameter)) if parameter.requires_grad else None,
        )
        for name, parameter in one.parameters.items()
    )
    return Recorded(one.module, Layer(one.name, one.kind, one.d_in, one.d_out, parts))

"""Look up kinds by the names that manifests give them.

    kind_of(layer).keys(layer, rows)
    register(MyKind())                  # before recording, and before reading what was recorded

Nobody outside of this room asks for a kind by its name.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from torch import nn

from dualform.errors import QueryError, RunError, UnknownName
from dualform.kinds.bag import EmbeddingBag
from dualform.kinds.base import Candidate, Kind
from dualform.kinds.bilinear import Bilinear
from dualform.kinds.convolution import Convolution, TransposedConvolution
from dualform.kinds.embedding import Embedding
from dualform.kinds.gates import GRU_GATES, LSTM_GATES, RNN_GATES
from dualform.kinds.linear import Linear
from dualform.kinds.names import clean_names, named_modules, named_parameters
from dualform.kinds.norm import Norm
from dualform.kinds.projections import Projections
from dualform.kinds.tried import TransposedLinear, TriedDiagonal, TriedLinear
from dualform.store.schema import Layer, Manifest

_OURS = (
    Linear(), Embedding(), EmbeddingBag(), Bilinear(), LSTM_GATES, GRU_GATES, RNN_GATES, Projections(), Convolution(),
    TransposedConvolution(), Norm(), TriedLinear(), TransposedLinear(), TriedDiagonal(),
)  # fmt: skip
_KINDS: dict[str, Kind] = {kind.name: kind for kind in _OURS}
KINDS: Mapping[str, Kind] = MappingProxyType(_KINDS)  # by name; to be read only


def register(kind: Kind) -> None:
    """Make a kind known; it replaces one of the same name.

        dualform.kinds.register(MyKind())       # before recording, and before reading what was recorded

    Args:
        kind: What to record and to answer with, for the layers it finds.
    """
    _KINDS[kind.name] = kind


def unregister(kind: Kind) -> None:
    """Forget a kind."""
    del _KINDS[kind.name]


def kind_of(layer: Layer) -> Kind:
    return _KINDS[layer.kind]


def check_kinds(manifest: Manifest, where: str) -> None:
    """Raise unless every layer of a manifest is of a known kind, and fits it; the error names `where`."""
    for layer in manifest.layers:
        if layer.kind not in _KINDS:
            raise RunError(
                f"{where} says that layer {layer.name!r} is of kind {layer.kind!r}, which this dualform does not know: "
                "upgrade with pip install --upgrade dualform, or register the kind first"
            )
        try:
            kind_of(layer).check(layer)
        except ValueError as error:
            raise RunError(f"{where} is a corrupt manifest: {error}") from None


def candidates(model: nn.Module) -> Iterator[Candidate]:
    """Yield every layer of a known kind in a model, recordable or not.

    A model that is a layer itself has no name in it: the layer is called after its class, `linear`.
    """
    modules, names = dict(model.named_modules()), clean_names(model)
    for name, module in modules.items():
        parent = modules[name.rpartition(".")[0]]
        found = [c for k in _KINDS.values() if not k.fallback for c in k.candidates(names[name], module, parent)]
        if not found:
            found = [c for k in _KINDS.values() if k.fallback for c in k.candidates(names[name], module, parent)]
        own = type(module).__name__.lower()
        yield from (c if c.name else replace(c, name=own, module_name="") for c in found)


def match_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """Find the model's modules for the recorded layers; raises where they do not fit."""
    modules = dict(named_modules(model))
    modules.setdefault(type(modules[""]).__name__.lower(), modules[""])  # a model that is a layer itself
    parameters = dict(named_parameters(model, remove_duplicate=False))
    users = Counter(use.parameter for layer in layers.values() for use in layer.uses)
    matched = {}
    for name, layer in layers.items():
        module = kind_of(layer).module_of(name, modules)
        if module is None:
            alike = [candidate.name for candidate in candidates(model) if candidate.kind is kind_of(layer)]
            raise UnknownName("layer in this model called", name, alike)
        for parameter in (use.parameter for use in layer.uses):
            own = parameters.get(parameter.name)
            if own is None or tuple(own.shape) != parameter.shape:
                got = "none" if own is None else f"one of shape {tuple(own.shape)}"
                raise QueryError(
                    f"layer {name!r} was recorded with a {parameter.name!r} of shape {parameter.shape}, this model "
                    f"has {got}"
                )
            if users[parameter] > 1 and not any(own is held for held in module.parameters()):
                raise QueryError(
                    f"layer {name!r} was recorded with {parameter.name!r}, which other layers use, too; in this model "
                    "it has a parameter of its own: tie them"
                )
        matched[name] = module
    return matched

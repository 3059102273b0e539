"""The modules of a model that recorded layers belong to."""

from collections.abc import Mapping

from torch import nn

from dualform.errors import QueryError, UnknownName
from dualform.kinds.registry import candidates, kind_of
from dualform.store.schema import Layer, clean_name


def match_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """Find the model's modules for the recorded layers; raises where they do not fit."""
    modules = {clean_name(name): module for name, module in model.named_modules()}
    parameters = {clean_name(name): p for name, p in model.named_parameters(remove_duplicate=False)}
    found = {}
    for name, layer in layers.items():
        module = modules.get(kind_of(layer).module_name(name))
        if module is None:
            alike = [one.name for one in candidates(model) if one.kind is kind_of(layer)]
            raise UnknownName("layer in this model called", name, alike)
        kind_of(layer).check_module(layer, module)
        for parameter in (use.parameter for use in layer.uses):
            there = parameters.get(parameter.name)
            if there is None or tuple(there.shape) != parameter.shape:
                got = "none" if there is None else f"one of shape {tuple(there.shape)}"
                raise QueryError(
                    f"layer {name!r} was recorded with a {parameter.name!r} of shape {parameter.shape}, this model "
                    f"has {got}"
                )
        found[name] = module
    return found

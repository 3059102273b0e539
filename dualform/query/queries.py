"""Queries: a test input's way through the model, caught at the recorded layers."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dualform.errors import QueryError, UnknownName
from dualform.store import Layer, clean_name


def match_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """The model's modules for the recorded layers; raises where they do not fit."""
    modules = {clean_name(name): module for name, module in model.named_modules()}
    found = {}
    for name, layer in layers.items():
        if name not in modules:
            linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
            raise UnknownName("layer in this model called", name, linear)
        weight = getattr(modules[name], "weight", None)
        shape = (layer.d_out, layer.d_in)
        if not isinstance(weight, Tensor) or tuple(weight.shape) != shape:
            got = "no weight" if weight is None else f"a weight of shape {tuple(weight.shape)}"
            raise QueryError(f"layer {name!r} was recorded with a weight of shape {shape}, this model has {got}")
        found[name] = modules[name]
    return found


def queries_of(
    model: nn.Module, modules: Mapping[str, nn.Module], inputs: Any, rows: int | slice | None
) -> dict[str, Tensor]:
    """Run the model once, in eval mode and without gradients, and keep each layer's inputs.

    A layer that is called several times gets the queries of all calls, one after the other.
    """
    caught: dict[str, list[Tensor]] = defaultdict(list)
    handles = [module.register_forward_pre_hook(_catch(caught[n]), with_kwargs=True) for n, module in modules.items()]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            _call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in training.items():
            module.training = mode
    return {name: torch.cat([_chosen(q, rows) for q in queries]) for name, queries in caught.items() if queries}


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _catch(into: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        into.append((args[0] if args else kwargs["input"]).detach())

    return hook


def _chosen(queries: Tensor, rows: int | slice | None) -> Tensor:
    """(rows, d_in), of all rows or of those at an index of the second dimension."""
    if rows is not None and queries.dim() > 2:
        queries = queries[:, rows]
    return queries.reshape(-1, queries.shape[-1])

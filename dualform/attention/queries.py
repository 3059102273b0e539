"""Run a test input through the model, and catch the queries at the recorded layers."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualform.attention.input_rows import ONE_AT_A_TIME, InputRows
from dualform.errors import QueryError, UnknownName
from dualform.kinds import ModuleCall, OnErrors, kind_of, match_modules
from dualform.slots import View
from dualform.store import Layer


def queries_of(model: nn.Module, layers: Mapping[str, Layer], inputs: Any, rows: InputRows) -> dict[str, Tensor]:
    """Run the model once, in eval mode and without gradients, and keep each layer's queries: (..., d_in).

    A layer that is called several times gets the queries of all calls, one after the other.
    """
    caught: dict[str, list[tuple[tuple[int, ...], Tensor]]] = defaultdict(list)

    def on_keys(layer: Layer, of_module: ModuleCall) -> None:
        kind = kind_of(layer)
        caught[layer.name].append((kind.leading(of_module), kind.queries(layer, of_module).detach()))

    with hooked(model, layers, on_keys), torch.no_grad():
        call(model, inputs)
    if not caught:
        raise QueryError(
            "none of the recorded layers was called as a module, so that there are no queries. Call the model outside "
            "of torch.vmap and torch.func, or pass the queries themselves: memory.attend({layer: queries})"
        )
    chosen = {
        name: [rows.chosen(name, number, leading, queries) for number, (leading, queries) in enumerate(calls)]
        for name, calls in caught.items()
    }
    return {
        name: calls[0] if len(calls) == 1 else torch.cat([queries.flatten(0, -2) for queries in calls])
        for name, calls in chosen.items()
    }


@contextmanager
def hooked(
    model: nn.Module, layers: Mapping[str, Layer], on_keys: Callable[..., OnErrors | None]
) -> Iterator[dict[str, nn.Module]]:
    """Hook the modules of the recorded layers, in eval mode; afterwards everything is as it was.

    A compiled model is run as plain Python: what was compiled before calls no hooks, and fullgraph=True allows none.

    Args:
        model: The model.
        layers: The recorded layers.
        on_keys: Called with the layer, and then with what `Kind.add_hooks` calls it with.
    """
    modules = match_modules(model, layers)
    with ONE_AT_A_TIME:
        handles = [
            kind_of(layer).add_hooks(modules[name], layer, partial(on_keys, layer), lasting=False)
            for name, layer in layers.items()
        ]
        training = {module: module.training for module in model.modules()}
        compiled = "torch._dynamo" in sys.modules  # if not, nothing is, and to import it would take seconds
        try:
            model.eval()
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield modules
        finally:
            for handle in handles:
                handle.remove()
            for module, mode in training.items():
                module.training = mode


def as_queries(view: View, by_layer: Any) -> dict[str, Tensor]:
    """Return queries (..., d_in) as they are multiplied: (queries, d_in), in the precision of the run's keys."""
    if not isinstance(by_layer, Mapping):
        got = f"the class {by_layer.__name__}" if isinstance(by_layer, type) else type(by_layer).__name__
        raise QueryError(f"pass memory.attend(model, inputs), the model first, or {{layer: queries}}; got {got}")
    prepared, layers = {}, view.run.layers
    for name, queries in by_layer.items():
        if name not in layers:
            raise UnknownName("layer", name, layers)
        width = layers[name].d_in
        if not isinstance(queries, Tensor):
            got = type(queries).__name__
            raise QueryError(
                f"queries of layer {name!r} are a tensor (..., {width}), got {got}: pass torch.as_tensor(x)"
            )
        if queries.dim() == 0 or queries.shape[-1] != width:
            entries = f"has {queries.shape[-1]}" if queries.dim() else "is a single number"
            raise QueryError(f"a query of layer {name!r} has {width} entries, this one {entries}")
        prepared[name] = queries.detach().to("cpu", view.dtype).reshape(-1, width)
        if not bool(prepared[name].isfinite().all()):
            precision = str(view.dtype).removeprefix("torch.")
            raise QueryError(f"queries of layer {name!r} have entries that are NaN, infinite or beyond {precision}")
    return prepared


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model with whatever it takes; should that fail, say so if what it was given can be the reason."""
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except Exception as error:
        several = isinstance(inputs, Mapping | tuple)
        for argument in (inputs.values() if isinstance(inputs, Mapping) else inputs) if several else [inputs]:
            if isinstance(argument, np.ndarray | list):
                kind = type(argument).__name__
                raise QueryError(f"the model cannot be called with {kind}: pass tensors, torch.as_tensor(x)") from error
        if inputs is None:
            raise QueryError("memory.attend(model, inputs) needs what to call the model with, got None") from error
        raise

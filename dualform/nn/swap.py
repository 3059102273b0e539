"""Swap fused modules of a model for ones whose linear maps are in view, in place."""

from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from dualform.errors import RecordingError
from dualform.nn import lstm
from dualform.nn.attention import MultiheadAttention

Model = TypeVar("Model", bound=nn.Module)

_PROJECTIONS = "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"


def unfuse(model: Model) -> Model:
    """Turn every torch.nn.LSTM and torch.nn.MultiheadAttention in a model, or the model itself, into dualform's own.

        model = dualform.nn.unfuse(model)

    The modules only change their class. They stay the same objects with the same parameters, so optimisers, hooks
    and whatever else refers to them go on working. Subclasses of torch's modules are left as they are.

    An nn.TransformerEncoder is told to make no nested tensors any more, of which no hook could see a row. It then
    returns some numbers for padded positions in evaluation, as it does in training, where torch's would return zeros.

    Args:
        model: The model, or an LSTM, or a MultiheadAttention.

    Returns:
        The same model.
    """
    # Parametrising a module makes a subclass of its class, which does not count as one.
    types = {name: type_before_parametrizations(module) for name, module in model.named_modules()}
    fused = {name: of_type for name, of_type in types.items() if of_type in (nn.LSTM, nn.MultiheadAttention)}
    modules = {name: model.get_submodule(name) for name in fused}
    for name, of_type in fused.items():  # all are checked before any is changed
        _check(modules[name], f"the {of_type.__name__} {name!r}" if name else f"the {of_type.__name__}")
    for module in modules.values():
        if isinstance(module, nn.LSTM):
            module.__class__ = lstm.LSTM
            module._taps = lstm.no_taps(module)
        else:
            module.__class__ = MultiheadAttention
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(map(_is_visible, encoder.modules())):
            encoder.use_nested_tensor = False
    return model


def _is_visible(module: nn.Module) -> bool:
    return isinstance(module, MultiheadAttention)


def _check(module: nn.Module, where: str) -> None:
    """Raise for a module that cannot be swapped."""
    if isinstance(module, nn.LSTM):
        lstm.refuse(module, where)
    names = module._flat_weights_names if isinstance(module, nn.LSTM) else _PROJECTIONS
    computed = [weight for weight in names if weight not in module._parameters]
    if computed:  # the optimiser steps what the weight is computed from, not the weight
        raise RecordingError(
            f"{where}: {', '.join(computed)} are no parameters of their own (weight norm, another parametrisation, "
            "pruning); remove that first, or leave it out of unfuse and unrecorded"
        )

"""Swap fused modules of a model for ones whose linear maps are in view, in place."""

from typing import TypeVar

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from dualform.errors import RecordingError
from dualform.nn.attention import MultiheadAttention
from dualform.nn.cells import GRUCell, LSTMCell, RNNCell
from dualform.nn.gru import GRU
from dualform.nn.lstm import LSTM
from dualform.nn.recurrent import Recurrent
from dualform.nn.rnn import RNN

Model = TypeVar("Model", bound=nn.Module)

_VISIBLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN, nn.LSTMCell: LSTMCell, nn.GRUCell: GRUCell, nn.RNNCell: RNNCell,
    nn.MultiheadAttention: MultiheadAttention,
}  # fmt: skip
_PROJECTIONS = "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"
_OF_CELLS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


def unfuse(model: Model) -> Model:
    """Turn every recurrent module of torch's and torch.nn.MultiheadAttention in a model, or the model, into dualform's.

        model = dualform.nn.unfuse(model)

    The modules only change their class. They stay the same objects with the same parameters, so optimisers, hooks
    and whatever else refers to them go on working. Subclasses of torch's modules are left as they are.

    An nn.TransformerEncoder is told to make no nested tensors any more, of which no hook could see a row. It then
    returns some numbers for padded positions in evaluation, as it does in training, where torch's would return zeros.

    Args:
        model: The model, or an LSTM, GRU or RNN, one of their cells, or a MultiheadAttention.

    Returns:
        The same model.
    """
    # Parametrising a module makes a subclass of its class, which does not count as one.
    types = {name: type_before_parametrizations(module) for name, module in model.named_modules()}
    fused = {name: of_type for name, of_type in types.items() if of_type in _VISIBLE}
    modules = {name: model.get_submodule(name) for name in fused}
    for name, of_type in fused.items():  # all are checked before any is changed
        _check(modules[name], f"the {of_type.__name__} {name!r}" if name else f"the {of_type.__name__}")
    for name, of_type in fused.items():
        modules[name].__class__ = _VISIBLE[of_type]
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(map(_is_visible, encoder.modules())):
            encoder.use_nested_tensor = False
    return model


def fuse_recurrent(model: Model) -> Model:
    """Turn dualform's recurrent modules in a model back into torch's, which can be differentiated twice.

    One that drops out between its layers stays: torch's would draw other random numbers.
    """
    for module in model.modules():
        fused = [of_type for of_type, visible in _VISIBLE.items() if type(module) is visible]
        if fused and isinstance(module, Recurrent) and not module.dropout:
            module.__class__ = fused[0]  # type: ignore[assignment]
    return model


def _is_visible(module: nn.Module) -> bool:
    return isinstance(module, MultiheadAttention)


def _check(module: nn.Module, where: str) -> None:
    """Raise for a module that cannot be swapped."""
    attended = _PROJECTIONS if isinstance(module, nn.MultiheadAttention) else _OF_CELLS
    names = module._flat_weights_names if isinstance(module, nn.RNNBase) else attended
    computed = [weight for weight in names if weight not in module._parameters]
    if computed:  # the optimiser steps what the weight is computed from, not the weight
        raise RecordingError(
            f"{where}: {', '.join(computed)} are no parameters of their own (weight norm, another parametrisation, "
            "pruning); remove that first, or leave it out of unfuse and unrecorded"
        )

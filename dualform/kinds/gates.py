"""Record the gates of dualform's recurrent modules, layer by layer and direction by direction.

Those of LSTMs and RNNs are one map of [input, previous hidden state] a layer; a GRU's are two, of either, since its
reset gate acts on one of them. They have taps, since they are no tensors that a hook could see.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from dualform import nn as visible
from dualform.errors import QueryError
from dualform.kinds.base import Candidate, Kind, ModuleCall, OnErrors, OnKeys
from dualform.kinds.ragged import Ragged
from dualform.nn.taps import Rows, Tapped
from dualform.store.schema import Layer


class Gates(Kind):
    """a = [weight_ih, weight_hh] [x; h] + bias_ih + bias_hh, or weight_ih x + bias_ih and weight_hh h + bias_hh"""

    may_repeat = False  # a key holds the module's state, which is never the same

    def __init__(self, name: str, fused: tuple[type[nn.Module], ...], own: tuple[type[Tapped], ...]) -> None:
        self.name = name  # type: ignore[misc]
        self._fused, self._own = fused, own

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, self._own):
            for which, found in module.maps().items():
                layer = f"{name}.{which}".strip(".")
                yield Candidate(layer, self, module, found.d_in, found.d_out, found.columns, module_name=name)
        elif isinstance(module, self._fused):
            fused = "torch computes its gates where no hook can see them; replace it with dualform.unfuse(model)"
            first = next(name for name, _ in module.named_parameters(recurse=False))
            yield Candidate(name, self, module, 0, 0, {first: None}, fused)

    def module_of(self, layer: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
        name, module = layer, modules.get(layer)  # a cell of one map has no name for it
        while name and not isinstance(module, self._fused):
            name = name.rpartition(".")[0]
            module = modules.get(name)
        if isinstance(module, self._fused) and not isinstance(module, self._own):
            own = f"dualform.nn.{type(module).__name__}"
            raise QueryError(f"layer {layer!r} was recorded from a {own}: pass dualform.unfuse(model)")
        return module if isinstance(module, self._own) else None

    def add_hooks(self, module: nn.Module, layer: Layer, on_keys: OnKeys, *, lasting: bool) -> RemovableHandle:
        assert isinstance(module, self._own)
        maps = sorted(module.maps(), key=len, reverse=True)
        which = next(which for which in maps if not which or f".{layer.name}".endswith(f".{which}"))
        return module.tap(which, partial(_on_tap, module, on_keys))

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        return super().leading(call) if call.context is None else Ragged.of(call.context)


def _on_tap(module: nn.Module, on_keys: OnKeys, keys: Rows) -> OnErrors | None:
    rows, packed = (keys.data, keys) if isinstance(keys, PackedSequence) else (keys, None)
    # errors that never come do no harm; an empty batch has no slots
    return on_keys(ModuleCall(module, rows, rows.dtype, context=packed)) if rows.numel() else None


LSTM_GATES = Gates("LSTM", (nn.LSTM, nn.LSTMCell), (visible.LSTM, visible.LSTMCell))
GRU_GATES = Gates("GRU", (nn.GRU, nn.GRUCell), (visible.GRU, visible.GRUCell))
RNN_GATES = Gates("RNN", (nn.RNN, nn.RNNCell), (visible.RNN, visible.RNNCell))

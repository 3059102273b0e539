"""Record the gates of a dualform.nn.LSTM: all four of a layer are one map of [input, previous hidden state].

An LSTM has taps, since its gates are no tensor that a hook could see.
"""

from collections.abc import Iterator, Mapping

from torch import nn
from torch.utils.hooks import RemovableHandle

from dualform.errors import QueryError
from dualform.kinds.base import Candidate, Columns, Kind, ModuleCall, OnKeys
from dualform.nn import LSTM
from dualform.store.schema import Layer


class Gates(Kind):
    """a = [weight_ih, weight_hh] [x; h] + bias_ih + bias_hh"""

    name = "LSTM"
    may_repeat = False  # a key holds the LSTM's state, which is never the same

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, LSTM):
            yield from (self._layer(name, module, number) for number in range(module.num_layers))
        elif isinstance(module, nn.LSTM):
            fused = "torch computes its gates where no hook can see them; replace it with dualform.unfuse(model)"
            yield Candidate(name, self, module, 0, 0, {"weight_ih_l0": None}, fused)

    def _layer(self, name: str, module: LSTM, number: int) -> Candidate:
        d_input = module.hidden_size if number else module.input_size
        d_in = d_input + module.hidden_size
        columns: Columns = {
            f"weight_ih_l{number}": (0, d_input), f"weight_hh_l{number}": (d_input, d_in),
            f"bias_ih_l{number}": None, f"bias_hh_l{number}": None,
        }  # fmt: skip
        layer = f"{name}.l{number}".lstrip(".")
        return Candidate(layer, self, module, d_in, 4 * module.hidden_size, columns, module_name=name)

    def module_of(self, layer: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
        module = modules.get(layer.rpartition(".")[0])
        if module is not None and not isinstance(module, LSTM):
            raise QueryError(f"layer {layer!r} was recorded from a dualform.nn.LSTM: pass dualform.unfuse(model)")
        return module

    def add_hooks(self, module: nn.Module, layer: Layer, on_keys: OnKeys, *, lasting: bool) -> RemovableHandle:
        assert isinstance(module, LSTM)
        number = int(layer.name.rpartition(".")[2].removeprefix("l"))
        # errors that never come do no harm; an empty batch has no slots
        return module.tap(number, lambda keys: on_keys(ModuleCall(module, keys, keys.dtype)) if keys.numel() else None)

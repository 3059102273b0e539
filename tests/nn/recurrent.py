"""Recurrent modules of both sorts with any options, what they are called with, and all that comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import dualform

KINDS = ("LSTM", "GRU", "RNN")
CELLS = ("LSTMCell", "GRUCell", "RNNCell")


@dataclass(frozen=True)
class Case:
    """A module's options, and how its input is laid out."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    layout: str = "batched"  # "unbatched", "packed" (sorted by length already), "unsorted"
    lengths: tuple[int, ...] = (5, 5, 5)  # of all sequences
    given: bool = False  # initial states
    d_in: int = 3
    hidden: int = 4
    seed: int = 0

    def modules(self, dtype: torch.dtype = torch.float64) -> tuple[nn.RNNBase, Any]:
        """Return torch's own and dualform's, with equal parameters."""
        torch.manual_seed(self.seed)
        fused = getattr(nn, self.kind)(self.d_in, self.hidden, dtype=dtype, **self.options)
        visible = getattr(dualform.nn, self.kind)(self.d_in, self.hidden, dtype=dtype, **self.options)
        visible.load_state_dict(fused.state_dict())
        return fused, visible

    def arguments(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Return the input as a tensor, and the initial states."""
        batch, options = ([] if self.layout == "unbatched" else [len(self.lengths)]), self.options
        time = [max(self.lengths, default=3)]
        layers = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
        leading = [*batch, *time] if options.get("batch_first") else [*time, *batch]
        widths = [options.get("proj_size", 0) or self.hidden, *([self.hidden] if self.kind == "LSTM" else [])]
        states = [[layers, *batch, width] for width in widths] if self.given else []
        return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ([*leading, self.d_in], *states)]

    def called(self, module: nn.Module, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Return the output, as the rows of packed sequences if these are its input, and the last states."""
        inputs, *states = arguments
        of_call: Any = inputs
        if self.layout in ("packed", "unsorted"):
            first, lengths = bool(self.options.get("batch_first")), torch.tensor(self.lengths)
            of_call = pack_padded_sequence(inputs, lengths, first, enforce_sorted=self.layout == "packed")
        hx = None if not states else tuple(states) if self.kind == "LSTM" else states[0]
        output, last = module(of_call, hx)
        if isinstance(of_call, PackedSequence):
            assert isinstance(output, PackedSequence)
            assert output._replace(data=of_call.data) == of_call
            output = output.data
        return [output, *(last if self.kind == "LSTM" else [last])]

    def everything(self, module: nn.Module, arguments: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return results, and the gradients of all there is: parameters, input, initial states."""
        torch.manual_seed(self.seed)  # of dropout
        results = self.called(module, arguments)
        loss = sum((result * torch.randn_like(result)).sin().sum() for result in results)
        assert isinstance(loss, Tensor)
        wanted = [*module.parameters(), *arguments]
        return results, list(torch.autograd.grad(loss, wanted, allow_unused=True))


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    layers = draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "num_layers": layers,
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.4])) if layers > 1 else 0.0,
    }
    hidden = draw(st.integers(1, 5))
    if kind == "LSTM" and hidden > 1:
        options["proj_size"] = draw(st.integers(0, hidden - 1))
    if kind == "RNN":
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    layout = draw(st.sampled_from(["batched", "unbatched", "packed", "unsorted"]))
    if layout in ("packed", "unsorted"):
        lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
        lengths = sorted(lengths, reverse=True) if layout == "packed" else lengths
    else:
        batch = 1 if layout == "unbatched" else draw(st.integers(0, 4))
        lengths = [draw(st.integers(1, 6))] * batch
    given = draw(st.booleans())
    return Case(kind, options, layout, tuple(lengths), given, draw(st.integers(1, 4)), hidden, draw(st.integers(0, 99)))

"""Show the linear maps of cells, which are called once a time step: torch's cells, as layers of one step.

cell = dualform.nn.GRUCell(28, 64)
hidden = cell(input, hidden)
"""

from typing import Any

import torch
from torch import Tensor, nn

from dualform.nn.gru import GRURecurrence
from dualform.nn.lstm import LSTMRecurrence
from dualform.nn.recurrence import Recurrence
from dualform.nn.rnn import RNNRecurrence
from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap, Tapped, uncompiled


class Cell(Tapped, nn.RNNCellBase):
    """One of torch's cells, computed where its keys and errors can be seen."""

    recurrence: Recurrence

    def maps(self) -> dict[str, LinearMap]:
        return self.recurrence.maps("", self.input_size, self.hidden_size, self.hidden_size)

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # noqa: A002
        """Compute what torch's own cell computes, and show taps the keys on the way."""
        return uncompiled(self._computed)(input, hx)

    def _computed(self, inputs: Tensor, hx: Any) -> Any:
        several, batched, dtype = self.recurrence.states > 1, inputs.dim() == 2, self.weight_ih.dtype
        states = None if hx is None else tuple(hx) if several else (hx,)
        for tensor in (inputs, *(states or ())):
            if tensor.dim() not in (1, 2):
                what = "input" if tensor is inputs else "hidden"
                raise ValueError(f"{type(self).__name__}: Expected {what} to be 1D or 2D, got {tensor.dim()}D instead")
        if torch.is_autocast_enabled(inputs.device.type):  # as layers do: run in the parameters' own precision
            inputs, states = inputs.to(dtype), None if states is None else tuple(state.to(dtype) for state in states)
        with torch.autocast(inputs.device.type, enabled=False):
            rows = inputs if batched else inputs.unsqueeze(0)
            last = self._step(rows, self._initial(rows, states, batched), batched)
        last = last if batched else tuple(state.squeeze(0) for state in last)
        return last if several else last[0]

    def _step(self, rows: Tensor, states: tuple[Tensor, ...], batched: bool) -> tuple[Tensor, ...]:
        def shown(rows: Tensor) -> Tensor:
            return rows if batched else rows.squeeze(0)

        taps = {which: self.row_tap(which, shown, shown) for which in self.maps()}
        weights = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        _, *last = self.recurrence.unroll(taps, Steps(1, len(rows)), rows, states, weights)
        return tuple(last)

    def _initial(self, rows: Tensor, states: tuple[Tensor, ...] | None, batched: bool) -> tuple[Tensor, ...]:
        """Return the states before the step, (batch, hidden) each, checked as torch does."""
        if rows.shape[1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {rows.shape[1]}, expected {self.input_size}")
        if states is None:
            return (rows.new_zeros(len(rows), self.hidden_size),) * self.recurrence.states
        states = states if batched else tuple(state.unsqueeze(0) for state in states)
        for index, state in enumerate(states):
            if state.shape != (len(rows), self.hidden_size):
                expected = len(rows), self.hidden_size
                raise RuntimeError(
                    f"hidden{index} has inconsistent shape: got {tuple(state.shape)}, expected {expected}"
                )
        return states


class LSTMCell(Cell, nn.LSTMCell):
    """torch.nn.LSTMCell with its linear map in view: same arguments, parameters, state dict and results.

    The map, whose name is "", makes the four gates of [input, previous hidden state].
    """

    recurrence = LSTMRecurrence()


class GRUCell(Cell, nn.GRUCell):
    """torch.nn.GRUCell with its linear maps in view: same arguments, parameters, state dict and results.

    Its maps are "ih" of the input, and "hh" of the previous hidden state.
    """

    recurrence = GRURecurrence()


class RNNCell(Cell, nn.RNNCell):
    """torch.nn.RNNCell with its linear map in view: same arguments, parameters, state dict and results.

    The map, whose name is "", is one of [input, previous hidden state].
    """

    @property
    def recurrence(self) -> Recurrence:  # type: ignore[override]
        return RNNRecurrence(self.nonlinearity)

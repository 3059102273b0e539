"""Run recurrent layers as torch does: several of them, both directions, packed sequences, dropout, initial states.

    class LSTM(Recurrent, nn.LSTM):
        recurrence = LSTMRecurrence()

What a layer does in each step is its recurrence (recurrence.py); where its rows lie in time, its steps (steps.py).
Rows are slots, (slots, d), from the module's input to its output.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from dualform.nn.recurrence import Recurrence
from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap, Rows, Tapped, uncompiled

States = tuple[Tensor, ...]


class Recurrent(Tapped, nn.RNNBase):
    """One of torch's recurrent modules, computed where its keys and errors can be seen."""

    recurrence: Recurrence

    def maps(self) -> dict[str, LinearMap]:
        by_layer = self._maps_by_layer().items()
        return {_joined(layer, which): found for layer, maps in by_layer for which, found in maps.items()}

    def forward(self, input: Rows, hx: Any = None) -> tuple[Rows, Any]:  # noqa: A002
        """Compute what torch's own module computes, and show taps the keys on the way."""
        return uncompiled(self._computed)(input, hx)

    def _computed(self, inputs: Rows, hx: Any) -> tuple[Rows, Any]:
        data = inputs.data if isinstance(inputs, PackedSequence) else inputs
        if torch.is_autocast_enabled(data.device.type):
            return self._without_autocast(inputs, hx)
        self._update_flat_weights()  # check_input compares with these
        several = self.recurrence.states > 1
        states = None if hx is None else tuple(hx) if several else (hx,)
        of_input = _Packed(inputs) if isinstance(inputs, PackedSequence) else self._dense(inputs)
        output, last = self._run(of_input, self._initial(of_input, states))
        last = tuple(of_input.states_out(state) for state in last)
        return of_input.shown(output), last if several else last[0]

    def _without_autocast(self, inputs: Rows, states: Any) -> tuple[Rows, Any]:
        """Run in the parameters' own precision, in which keys and errors explain the gradient best."""
        dtype, data = self.all_weights[0][0].dtype, inputs.data
        with torch.autocast(data.device.type, enabled=False):
            if states is not None:
                states = states.to(dtype) if isinstance(states, Tensor) else tuple(state.to(dtype) for state in states)
            return self._computed(inputs.to(dtype), states)

    def _dense(self, inputs: Tensor) -> "_Dense":
        """Return a tensor as an input, checked as torch does."""
        if inputs.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {inputs.dim()}D instead")
        batched = inputs.dim() == 3
        time_first = (inputs.transpose(0, 1) if self.batch_first else inputs) if batched else inputs.unsqueeze(1)
        self.check_input(time_first, None)
        if len(time_first) == 0:
            raise RuntimeError(f"{type(self).__name__}: Expected sequence length to be larger than 0")
        return _Dense(time_first, batched, self.batch_first)

    def _initial(self, of_input: "_Dense | _Packed", states: States | None) -> States:
        """Return the initial states, (layers, batch, d) each."""
        sizes = None if isinstance(of_input, _Dense) else of_input.packed.batch_sizes
        if sizes is not None:
            self.check_input(of_input.rows, sizes)
        layers, batch = len(self._layer_names()), of_input.steps.batch
        widths = [self.proj_size or self.hidden_size, self.hidden_size][: self.recurrence.states]
        if states is None:
            return tuple(of_input.rows.new_zeros(layers, batch, width) for width in widths)
        states = tuple(of_input.states_in(state) for state in states)
        for index, (state, width) in enumerate(zip(states, widths, strict=True)):
            named = f"hidden[{index}]" if len(widths) > 1 else "hidden"
            self.check_hidden_size(state, (layers, batch, width), f"Expected {named} size {{}}, got {{}}")
            rows = of_input.rows
            if (state.dtype, state.device) != (rows.dtype, rows.device):
                raise RuntimeError(
                    f"{type(self).__name__}: Expected {named} as {rows.dtype} on {rows.device}, like the input, "
                    f"got {state.dtype} on {state.device}"
                )
        return states

    def _run(self, of_input: "_Dense | _Packed", states: States) -> tuple[Tensor, States]:
        """Return the output (slots, directions x d_out), and each state after the last step, (layers, batch, d)."""
        directions = [of_input.steps, of_input.steps.reversed()] if self.bidirectional else [of_input.steps]
        rows, outputs, last = of_input.rows, list[Tensor](), []
        for number, (layer, maps) in enumerate(self._maps_by_layer().items()):
            direction = number % len(directions)
            if number and not direction:
                rows, outputs = F.dropout(_beside(outputs), self.dropout, self.training), []
            taps = {
                which: self.row_tap(_joined(layer, which), of_input.shown_keys, of_input.shown_errors) for which in maps
            }
            initial, weights = [state[number] for state in states], self._weights(number)
            output, *ends = self.recurrence.unroll(taps, directions[direction], rows, initial, weights)
            outputs.append(output)
            last.append(ends)
        return _beside(outputs), tuple(torch.stack(of_layers) for of_layers in zip(*last, strict=True))

    def _layer_names(self) -> list[str]:
        """Return the layers' names, in the order in which torch numbers them: what parameters are called after."""
        ways = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{number}{way}" for number in range(self.num_layers) for way in ways]

    def _maps_by_layer(self) -> dict[str, dict[str, LinearMap]]:
        d_out, directions = self.proj_size or self.hidden_size, 2 if self.bidirectional else 1
        return {
            layer: self.recurrence.maps(
                f"_{layer}", self.input_size if number < directions else directions * d_out, self.hidden_size, d_out
            )
            for number, layer in enumerate(self._layer_names())
        }

    def _weights(self, number: int) -> list[Tensor | None]:
        """Return a layer's parameters: weights, biases or None, and the projection if there is one."""
        weights = self.all_weights[number]
        return list(weights) if self.bias else [*weights[:2], None, None, *weights[2:]]


@dataclass(frozen=True, eq=False)
class _Dense:
    """An input that is a tensor, and the layout that it had."""

    time_first: Tensor  # (time, batch, d_in)
    batched: bool
    batch_first: bool

    @property
    def steps(self) -> Steps:
        return Steps(*self.time_first.shape[:2])

    @property
    def rows(self) -> Tensor:
        return self.time_first.flatten(0, 1)

    def shown(self, rows: Tensor) -> Tensor:
        blocks = rows.view(*self.time_first.shape[:2], rows.shape[1])
        if not self.batched:
            return blocks.squeeze(1)
        return blocks.transpose(0, 1) if self.batch_first else blocks

    shown_keys = shown_errors = shown

    def states_in(self, state: Tensor) -> Tensor:
        expected = 3 if self.batched else 2
        if state.dim() != expected:
            batched = "batched 3-D" if self.batched else "unbatched 2-D"
            raise RuntimeError(f"For {batched} input, hx should also be {expected}-D but got {state.dim()}-D tensor")
        return state if self.batched else state.unsqueeze(1)

    def states_out(self, state: Tensor) -> Tensor:
        return state if self.batched else state.squeeze(1)


@dataclass(frozen=True, eq=False)
class _Packed:
    """An input of packed sequences."""

    packed: PackedSequence

    @property
    def steps(self) -> Steps:
        return Steps.of_packed(self.packed)

    @property
    def rows(self) -> Tensor:
        return self.packed.data

    def shown(self, rows: Tensor) -> PackedSequence:
        return self.packed._replace(data=rows)

    shown_keys = shown

    def shown_errors(self, rows: Tensor) -> Tensor:
        return rows

    def states_in(self, state: Tensor) -> Tensor:
        order = self.packed.sorted_indices
        return state if order is None else state.index_select(1, order)

    def states_out(self, state: Tensor) -> Tensor:
        order = self.packed.unsorted_indices
        return state if order is None else state.index_select(1, order)


def _beside(outputs: list[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _joined(layer: str, which: str) -> str:
    return f"{layer}.{which}" if which else layer

"""Show the linear maps of an LSTM: torch.nn.LSTM, computed where its keys and errors can be seen.

    handle = lstm.tap(0, lambda keys: print)     # the keys of layer 0; its errors are printed

torch.nn.LSTM computes all of its time steps inside one opaque kernel. Here the four gates of a layer are one
visible linear map, whose key is the input together with the previous hidden state:

    a_t = W [x_t; h_(t-1)] + b           W = [weight_ih, weight_hh], b = bias_ih + bias_hh
    i, f, o = sigmoid(a_t)               input, forget and output gate: a quarter of a_t each, in the order i, f, g, o
    g = tanh(a_t)                        candidate
    c_t = f c_(t-1) + i g                cell
    h_t = o tanh(c_t)                    hidden state, the layer's output

The gradients come from the errors at the gates, e_t = dL/da_t, found from the last step to the first. With
H_t = dL/dh_t and C_t = dL/dc_t, both including what comes back from step t + 1:

    C_t = f_(t+1) C_(t+1) + H_t o (1 - tanh(c_t)^2)
    e_t = [C_t g i (1 - i),  C_t c_(t-1) f (1 - f),  C_t i (1 - g^2),  H_t tanh(c_t) o (1 - o)]
    H_(t-1) = dL/d output_(t-1) + weight_hh^T e_t

and then dL/dW = E^T X: one product of all errors E (time x batch, 4 hidden) and all keys X (time x batch,
d_in + hidden), just as for a torch.nn.Linear. A tap sees that X and that E.

Rows are slots outside, (time, batch, d). Inside the recurrence slots are columns, (time, d, batch): BLAS is
quicker that way round, and a gate is then one contiguous block.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError, UnknownName

Receive = Callable[[Tensor], None]
Tap = Callable[[Tensor], Receive | None]
States = tuple[Tensor, Tensor]
Layout = Callable[[Tensor], Tensor]


class LSTM(nn.LSTM):
    """torch.nn.LSTM with its linear maps in view: same arguments, parameters, state dict and results.

        lstm = dualform.nn.LSTM(28, 64, num_layers=2)
        output, (h_n, c_n) = lstm(input)

    Not for bidirectional=True, proj_size > 0 and packed sequences.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse(self, "dualform.nn.LSTM")
        self._taps = no_taps(self)

    def tap(self, layer: int, on_keys: Tap) -> RemovableHandle:
        """Call `on_keys` with the keys of a layer in every forward pass, until `handle.remove()`.

        Args:
            layer: The layer's number, from 0.
            on_keys: Takes the keys in the layout of the module's input, (..., d_in + hidden): the layer's input, then
                its previous hidden state. If it returns a function, the backward pass calls that with the errors at
                the gates, (..., 4 hidden), in the same layout.
        """
        if layer not in range(self.num_layers):
            raise UnknownName("LSTM layer", layer, range(self.num_layers))
        handle = RemovableHandle(self._taps[layer])
        self._taps[layer][handle.id] = on_keys
        return handle

    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]:  # type: ignore[override]  # noqa: A002
        """Compute what torch.nn.LSTM computes, and show taps the keys on the way."""
        if isinstance(input, PackedSequence):
            raise RecordingError(
                "dualform.nn.LSTM expected a tensor, got a PackedSequence: pad it (torch.nn.utils.rnn."
                "pad_packed_sequence), or keep torch.nn.LSTM for it, which is not recorded"
            )
        if torch.is_autocast_enabled(input.device.type):
            return self._without_autocast(input, hx)
        output = self._time_first(input)
        hidden, cell = self._states(output, hx, batched=input.dim() == 3)
        layout, last_hidden, last_cell = _layout(input.dim(), self.batch_first), [], []
        for layer in range(self.num_layers):
            on_keys = _joint(self._taps[layer].values(), layout) if self._taps[layer] else None
            parameters = (*self.all_weights[layer], *(() if self.bias else (None, None)))
            output, last = _Layer.apply(on_keys, output, hidden[layer], cell[layer], *parameters)  # type: ignore[no-untyped-call]
            last_hidden.append(output[-1])
            last_cell.append(last)
            if layer < self.num_layers - 1:
                output = F.dropout(output, self.dropout, self.training)
        h_n, c_n = torch.stack(last_hidden), torch.stack(last_cell)  # (layers, batch, hidden)
        return layout(output), (h_n, c_n) if input.dim() == 3 else (h_n.squeeze(1), c_n.squeeze(1))

    def _without_autocast(self, inputs: Tensor, states: States | None) -> tuple[Tensor, States]:
        """Run in the parameters' own precision, in which keys and errors explain the gradient best."""
        dtype = self.all_weights[0][0].dtype
        with torch.autocast(inputs.device.type, enabled=False):
            if states is not None:
                states = states[0].to(dtype), states[1].to(dtype)
            return self.forward(inputs.to(dtype), states)

    def _time_first(self, inputs: Tensor) -> Tensor:
        """Return the input as (time, batch, d_in), checked as torch.nn.LSTM does."""
        if inputs.dim() not in (2, 3):
            raise ValueError(f"LSTM: Expected input to be 2D or 3D, got {inputs.dim()}D instead")
        if inputs.dim() == 2:
            inputs = inputs.unsqueeze(1)  # (time, 1, d_in)
        elif self.batch_first:
            inputs = inputs.transpose(0, 1)  # (time, batch, d_in)
        self._update_flat_weights()  # check_input compares with these
        self.check_input(inputs, None)
        if len(inputs) == 0:
            raise RuntimeError("LSTM: Expected sequence length to be larger than 0")
        return inputs

    def _states(self, inputs: Tensor, states: States | None, batched: bool) -> States:
        """Return the initial hidden states and cells, (layers, batch, hidden) each."""
        expected = self.num_layers, inputs.shape[1], self.hidden_size
        if states is None:
            return inputs.new_zeros(expected), inputs.new_zeros(expected)
        hidden, cell = states if batched else (states[0].unsqueeze(1), states[1].unsqueeze(1))
        for index, state in enumerate((hidden, cell)):
            self.check_hidden_size(state, expected, f"Expected hidden[{index}] size {{}}, got {{}}")
            if (state.dtype, state.device) != (inputs.dtype, inputs.device):
                raise RuntimeError(
                    f"LSTM: Expected hidden[{index}] as {inputs.dtype} on {inputs.device}, like the input, "
                    f"got {state.dtype} on {state.device}"
                )
        return hidden, cell

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: taps belong to whoever set them, on this module only."""
        return {**super().__getstate__(), "_taps": no_taps(self)}  # type: ignore[no-untyped-call]


class _Trace(NamedTuple):
    """What a layer did, step by step, with slots as columns."""

    keys: Tensor  # (time + 1, d_in + hidden, batch); the last holds a hidden state but no input
    gates: Tensor  # (time, 4, hidden, batch), after sigmoid and tanh
    cells: Tensor  # (time + 1, hidden, batch), with the initial one
    squashed: Tensor  # (time, hidden, batch), the tanh of each new cell


class _Layer(torch.autograd.Function):
    """One layer over all time steps, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        on_keys: Tap | None,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        weight = torch.cat([weight_ih, weight_hh], dim=1)  # (4 hidden, d_in + hidden)
        bias = weight.new_zeros(len(weight)) if bias_ih is None or bias_hh is None else bias_ih + bias_hh
        trace = _blank(inputs, hidden, cell)
        _unroll(trace, weight, bias)
        keys = trace.keys[:-1].mT.contiguous()  # (time, batch, d_in + hidden)
        output = trace.keys[1:, inputs.shape[2] :].mT.contiguous()  # (time, batch, hidden)
        ctx.receive = None if on_keys is None else on_keys(keys)
        ctx.save_for_backward(keys, *trace[1:], weight_ih, weight_hh)
        return output, trace.cells[-1].mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_output.device.type, enabled=False):
            keys, gates, cells, squashed, weight_ih, weight_hh = ctx.saved_tensors
            columns, grad_hidden, grad_cell = _unroll_back(gates, cells, squashed, weight_hh, grad_output, grad_cell)
            errors = columns.flatten(1, 2).mT.contiguous()  # (time, batch, 4 hidden)
            if ctx.receive is not None:
                ctx.receive(errors)
            _, inputs_wanted, _, _, *wanted = ctx.needs_input_grad
            grad_inputs = errors @ weight_ih if inputs_wanted else None  # (time, batch, d_in)
            return None, grad_inputs, grad_hidden, grad_cell, *_parameter_gradients(keys, errors, wanted)


def _blank(inputs: Tensor, hidden: Tensor, cell: Tensor) -> _Trace:
    """Return a trace of which only the beginning is filled in: all inputs and the initial states."""
    (time, batch, d_in), width = inputs.shape, hidden.shape[1]
    keys = inputs.new_empty(time + 1, d_in + width, batch)
    cells = inputs.new_empty(time + 1, width, batch)
    keys[:-1, :d_in] = inputs.mT
    keys[0, d_in:] = hidden.mT
    cells[0] = cell.mT
    return _Trace(keys, inputs.new_empty(time, 4, width, batch), cells, inputs.new_empty(time, width, batch))


def _unroll(trace: _Trace, weight: Tensor, bias: Tensor) -> None:
    """Write the recurrence into the trace, without an allocation per step."""
    keys, gates, cells, squashed = trace
    bias = bias.unsqueeze(1)  # (4 hidden, 1)
    hiddens = keys[1:, -gates.shape[2] :]  # (time, hidden, batch)
    steps = zip(keys[:-1], gates, cells[:-1], cells[1:], squashed, hiddens, strict=True)
    for key, gate, old_cell, new_cell, squash, new_hidden in steps:
        torch.addmm(bias, weight, key, out=gate.flatten(0, 1))
        i, f, g, o = gate.unbind()
        gate[:2].sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, old_cell, out=new_cell).addcmul_(i, g)
        torch.mul(o, torch.tanh(new_cell, out=squash), out=new_hidden)


def _unroll_back(
    gates: Tensor, cells: Tensor, squashed: Tensor, weight_hh: Tensor, grad_output: Tensor, grad_cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return errors at the gates (time, 4, hidden, batch), gradients of the initial states (batch, hidden)."""
    errors, through = _derivatives(gates, cells, squashed)
    transposed = weight_hh.mT.contiguous()  # (hidden, 4 hidden); BLAS is slower on the view
    grad_output = grad_output.mT.contiguous()  # (time, hidden, batch)
    grad_hidden = torch.zeros_like(squashed[0])  # (hidden, batch)
    grad_cell = grad_cell.mT.clone(memory_format=torch.contiguous_format)  # (hidden, batch)
    steps = zip(errors, through, gates[:, 1], grad_output, strict=True)
    for error, to_cell, forget, grad in reversed(list(steps)):
        grad_hidden.add_(grad)
        grad_cell.addcmul_(grad_hidden, to_cell)
        error[:3].mul_(grad_cell)
        error[3].mul_(grad_hidden)
        grad_cell.mul_(forget)
        torch.mm(transposed, error.flatten(0, 1), out=grad_hidden)
    return errors, grad_hidden.mT, grad_cell.mT


def _derivatives(gates: Tensor, cells: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what can be known before the way back: de_t / dC_t (for o: / dH_t), and dc_t / dh_t through the tanh.

    For all time steps at once, which leaves little to do in each of them.
    """
    i, f, g, o = gates.unbind(1)  # (time, hidden, batch) each
    errors = torch.empty_like(gates)
    through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
    through_tanh = torch.ops.aten.tanh_backward.grad_input
    through_sigmoid(g, i, grad_input=errors[:, 0])
    through_sigmoid(cells[:-1], f, grad_input=errors[:, 1])
    through_tanh(i, g, grad_input=errors[:, 2])
    through_sigmoid(squashed, o, grad_input=errors[:, 3])
    return errors, torch.ops.aten.tanh_backward(o, squashed)


def _parameter_gradients(keys: Tensor, errors: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """Return the gradients of weight_ih, weight_hh, bias_ih and bias_hh; None for those that are not wanted."""
    x, e = keys.flatten(0, 1), errors.flatten(0, 1)  # (time x batch, ...)
    hidden = e.shape[1] // 4
    gradients: list[Tensor | None] = [None] * 4
    if any(wanted[:2]):
        gradients[:2] = (e.mT @ x).split([x.shape[1] - hidden, hidden], dim=1)
    if any(wanted[2:]):
        bias = e.sum(0)
        gradients[2:] = bias, bias.clone()  # both parameters will own theirs
    return tuple(gradient if asked else None for gradient, asked in zip(gradients, wanted, strict=True))


def _joint(taps: Iterable[Tap], layout: Layout) -> Tap:
    """Join several taps to one, which takes (time, batch, d) and shows them the module's layout."""
    taps = list(taps)

    def on_keys(keys: Tensor) -> Receive:
        receivers = [tap(layout(keys)) for tap in taps]

        def receive(errors: Tensor) -> None:
            for receiver in receivers:
                if receiver is not None:
                    receiver(layout(errors))

        return receive

    return on_keys


def _layout(dims: int, batch_first: bool) -> Layout:
    """Return what turns (time, batch, d) into the layout of an input with so many dimensions."""
    if dims == 2:
        return lambda rows: rows.squeeze(1)  # (time, d)
    if batch_first:
        return lambda rows: rows.transpose(0, 1)  # (batch, time, d)
    return lambda rows: rows


def no_taps(module: nn.LSTM) -> "list[OrderedDict[int, Tap]]":
    return [OrderedDict() for _ in range(module.num_layers)]


def refuse(module: nn.LSTM, where: str) -> None:
    """Raise for options that only torch.nn.LSTM has."""
    options = [name for name in ("bidirectional", "proj_size") if getattr(module, name)]
    if options:
        named = " and ".join(f"{name}={getattr(module, name)}" for name in options)
        raise RecordingError(f"{where}: {named} is not supported; keep torch.nn.LSTM for it, which is not recorded")

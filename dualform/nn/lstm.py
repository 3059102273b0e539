"""Unroll an LSTM, with its linear maps in view.

torch.nn.LSTM computes all of its time steps inside one opaque kernel. Here the four gates of a layer are one
visible linear map, whose key is the input together with the previous hidden state:

    a_t = W [x_t; h_(t-1)] + b           W = [weight_ih, weight_hh], b = bias_ih + bias_hh
    i, f, o = sigmoid(a_t)               input, forget and output gate: a quarter of a_t each, in the order i, f, g, o
    g = tanh(a_t)                        candidate
    c_t = f c_(t-1) + i g                cell
    m_t = o tanh(c_t)
    h_t = m_t, or weight_hr m_t          hidden state, the layer's output; with proj_size a second map, named "hr"

The gradients come from the errors at the gates, e_t = dL/da_t, found from the last step to the first. With
H_t = dL/dh_t, M_t = dL/dm_t (which is H_t, or weight_hr^T H_t) and C_t = dL/dc_t, all including what comes back from
step t + 1:

    C_t = f_(t+1) C_(t+1) + M_t o (1 - tanh(c_t)^2)
    e_t = [C_t g i (1 - i),  C_t c_(t-1) f (1 - f),  C_t i (1 - g^2),  M_t tanh(c_t) o (1 - o)]
    H_(t-1) = dL/d output_(t-1) + weight_hh^T e_t

H_t is the error of the projection.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dualform.nn.recurrence import Recurrence, Taps, joint_gradients, joint_keys, joint_map, joint_weight
from dualform.nn.recurrent import Recurrent
from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap


class LSTMRecurrence(Recurrence):
    """Gates of [x; h], and a cell."""

    states = 2

    def maps(self, suffix: str, d_in: int, hidden: int, d_out: int) -> dict[str, LinearMap]:
        gates = {"": joint_map(suffix, d_in, d_out, 4 * hidden)}
        return (
            gates if d_out == hidden else {**gates, "hr": LinearMap(hidden, d_out, {f"weight_hr{suffix}": (0, hidden)})}
        )

    def unroll(
        self, taps: Taps, steps: Steps, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        parameters = *weights[:4], weights[4] if len(weights) > 4 else None
        unrolled: tuple[Tensor, ...] = _Unroll.apply(taps, steps, rows, *states, *parameters)  # type: ignore[no-untyped-call]
        return unrolled


class LSTM(Recurrent, nn.LSTM):  # type: ignore[misc]  # takes either sort of input
    """torch.nn.LSTM with its linear maps in view: same arguments, parameters, state dict and results.

        lstm = dualform.nn.LSTM(28, 64, num_layers=2)
        output, (h_n, c_n) = lstm(input)

    Its maps are "l0", "l1", ...: the four gates of a layer, of [input, previous hidden state]; "l0_reverse", where it
    reads backwards, too; and "l0.hr", the projection, with proj_size.
    """

    recurrence = LSTMRecurrence()


class _Trace(NamedTuple):
    """What a layer did, step by step, with slots as columns."""

    keys: Tensor  # (time + 1, d_in + d_hidden, batch)
    gates: Tensor  # (time, 4, hidden, batch), after sigmoid and tanh
    cells: Tensor  # (time + 1, hidden, batch), with the initial one
    squashed: Tensor  # (time, hidden, batch), the tanh of each new cell
    outputs: Tensor  # (time, hidden, batch): m; or, without a projection, where the keys have the hidden states


class _Unroll(torch.autograd.Function):
    """All time steps, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        taps: Taps,
        steps: Steps,
        rows: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
        weight_hr: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        trace = _trace(steps, rows, hidden, cell, projected=weight_hr is not None)
        hiddens = trace.keys[:, rows.shape[1] :]  # (time + 1, d_hidden, batch)
        _unroll(steps, trace, hiddens[1:], joint_weight(weight_ih, weight_hh, bias_ih, bias_hh), weight_hr)
        keys = steps.gather(trace.keys[:-1])  # (slots, d_in + d_hidden)
        inner = None if weight_hr is None else steps.gather(trace.outputs)  # (slots, hidden)
        ctx.receive, ctx.receive_hr = _show(taps.get(""), keys), _show(taps.get("hr"), inner)
        ctx.steps = steps
        ctx.save_for_backward(keys, inner, *trace[1:4], weight_ih, weight_hh, weight_hr)
        return steps.gather(hiddens[1:]), steps.last(hiddens), steps.last(trace.cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_rows: Tensor, grad_hidden: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_rows.device.type, enabled=False):
            keys, inner, *trace, weight_ih, weight_hh, weight_hr = ctx.saved_tensors
            grads = grad_rows, grad_hidden, grad_cell
            columns, projected, *grad_states = _unroll_back(ctx.steps, trace, (weight_hh, weight_hr), grads)
            errors = ctx.steps.gather(columns.flatten(1, 2))  # (slots, 4 hidden)
            if ctx.receive is not None:
                ctx.receive(errors)
            _, _, rows_wanted, _, _, *wanted, projection_wanted = ctx.needs_input_grad
            grad_projection = None
            if weight_hr is not None:
                of_projection = ctx.steps.gather(projected)  # (slots, d_hidden)
                if ctx.receive_hr is not None:
                    ctx.receive_hr(of_projection)
                grad_projection = of_projection.mT @ inner if projection_wanted else None
            grad_inputs = errors @ weight_ih if rows_wanted else None  # (slots, d_in)
            gradients = joint_gradients(keys, errors, wanted, weight_ih.shape[1])
            return None, None, grad_inputs, *grad_states, *gradients, grad_projection


def _show(tap: Any, rows: Tensor | None) -> Any:
    return None if tap is None or rows is None else tap(rows)


def _trace(steps: Steps, rows: Tensor, hidden: Tensor, cell: Tensor, projected: bool) -> _Trace:
    """Return a trace of which only the beginning is filled in: all inputs and the initial states."""
    time, (batch, width) = steps.time, cell.shape
    keys = joint_keys(steps, rows, hidden)
    cells = rows.new_empty(time + 1, width, batch)
    cells[0] = cell.mT
    squashed = rows.new_empty(time, width, batch)
    outputs = torch.empty_like(squashed) if projected else keys[1:, rows.shape[1] :]
    return _Trace(keys, rows.new_empty(time, 4, width, batch), cells, squashed, outputs)


def _unroll(
    steps: Steps, trace: _Trace, hiddens: Tensor, joint: tuple[Tensor, Tensor], weight_hr: Tensor | None
) -> None:
    """Write the recurrence into the trace, without an allocation per step."""
    keys, gates, cells, squashed, outputs = trace
    weight, bias = joint
    blocks = keys[:-1], gates, cells[:-1], cells[1:], squashed, outputs, hiddens
    for key, gate, old_cell, new_cell, squash, output, hidden in steps.each(*blocks):
        torch.addmm(bias, weight, key, out=gate.flatten(0, 1))
        i, f, g, o = gate.unbind()
        gate[:2].sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, old_cell, out=new_cell).addcmul_(i, g)
        torch.mul(o, torch.tanh(new_cell, out=squash), out=output)
        if weight_hr is not None:
            torch.mm(weight_hr, output, out=hidden)


def _unroll_back(
    steps: Steps, trace: Sequence[Tensor], weights: tuple[Tensor, Tensor | None], grads: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Return errors at the gates (time, 4, hidden, batch) and at the projection, gradients of the initial states."""
    gates, cells, squashed = trace
    errors, through = _derivatives(gates, cells, squashed)
    transposed = weights[0].mT.contiguous()  # (d_hidden, 4 hidden); BLAS is slower on the view
    projection = None if weights[1] is None else weights[1].mT.contiguous()  # (hidden, d_hidden)
    # (time, d_hidden, batch); each step adds to it what comes back, which makes it the projection's errors
    grad_output = steps.spread(grads[0]).mT.clone(memory_format=torch.contiguous_format)
    running = [grad.mT.clone(memory_format=torch.contiguous_format) for grad in grads[1:]]  # (d, batch) each
    for grad_hidden, grad_cell, error, to_cell, forget, grad in steps.each_back(
        running, errors, through, gates[:, 1], grad_output
    ):
        grad.add_(grad_hidden)
        inner = grad if projection is None else projection @ grad
        grad_cell.addcmul_(inner, to_cell)
        error[:3].mul_(grad_cell)
        error[3].mul_(inner)
        grad_cell.mul_(forget)
        torch.mm(transposed, error.flatten(0, 1), out=grad_hidden)
    return errors, grad_output, *(grad.mT for grad in running)


def _derivatives(gates: Tensor, cells: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what can be known before the way back: de_t / dC_t (for o: / dM_t), and dc_t / dm_t through the tanh.

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

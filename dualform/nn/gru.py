"""Unroll a GRU, with its linear maps in view.

The reset gate of a GRU acts on what weight_hh makes of the hidden state, and not on what weight_ih makes of the input.
So a layer is two linear maps, "ih" of the input and "hh" of the previous hidden state, with three parts each:

    [u_r, u_z, u_n] = weight_ih x_t + bias_ih
    [v_r, v_z, v_n] = weight_hh h_(t-1) + bias_hh
    r, z = sigmoid(u_r + v_r), sigmoid(u_z + v_z)       reset and update gate
    n = tanh(u_n + r v_n)                               candidate
    h_t = (1 - z) n + z h_(t-1)                         hidden state, the layer's output

The gradients come from the errors at both maps, found from the last step to the first. With H_t = dL/dh_t, including
what comes back from step t + 1:

    e_n = H_t (1 - z) (1 - n^2)
    e_z = H_t (h_(t-1) - n) z (1 - z)
    e_r = e_n v_n r (1 - r)
    dL/du_t = [e_r, e_z, e_n],  dL/dv_t = [e_r, e_z, r e_n]
    H_(t-1) = dL/d output_(t-1) + z H_t + weight_hh^T dL/dv_t
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dualform.nn.recurrence import Recurrence, Taps
from dualform.nn.recurrent import Recurrent
from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap


class GRURecurrence(Recurrence):
    """A map of the input, and one of the hidden state."""

    def maps(self, suffix: str, d_in: int, hidden: int, d_out: int) -> dict[str, LinearMap]:
        return {
            which: LinearMap(width, 3 * hidden, {f"weight_{which}{suffix}": (0, width), f"bias_{which}{suffix}": None})
            for which, width in (("ih", d_in), ("hh", hidden))
        }

    def unroll(
        self, taps: Taps, steps: Steps, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        unrolled: tuple[Tensor, ...] = _Unroll.apply(taps, steps, rows, *states, *weights)  # type: ignore[no-untyped-call]
        return unrolled


class GRU(Recurrent, nn.GRU):  # type: ignore[misc]  # takes either sort of input
    """torch.nn.GRU with its linear maps in view: same arguments, parameters, state dict and results.

        gru = dualform.nn.GRU(28, 64, num_layers=2)
        output, h_n = gru(input)

    Each layer has two maps: "l0.ih" of its input, and "l0.hh" of its previous hidden state; "l0_reverse.ih" and so on,
    where it reads backwards, too.
    """

    recurrence = GRURecurrence()


class _Unroll(torch.autograd.Function):
    """All time steps, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        taps: Taps,
        steps: Steps,
        rows: Tensor,
        hidden: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        gates = steps.spread(F.linear(rows, weight_ih, bias_ih)).mT  # (time, 3 hidden, batch)
        gates = gates.contiguous().unflatten(1, (3, -1))  # (time, 3, hidden, batch): u_r, u_z, u_n, then r, z, n
        hiddens = rows.new_empty(steps.time + 1, hidden.shape[1], steps.batch)  # with the initial one
        hiddens[0] = hidden.mT
        recurrent = _unroll(steps, gates, hiddens, weight_hh, bias_hh)
        keys = steps.gather(hiddens[:-1])  # (slots, hidden)
        on_input, on_hidden = taps.get("ih"), taps.get("hh")
        ctx.receive_input = None if on_input is None else on_input(rows.detach())
        ctx.receive_hidden = None if on_hidden is None else on_hidden(keys)
        ctx.steps = steps
        ctx.save_for_backward(rows, keys, gates, recurrent, hiddens, weight_ih, weight_hh)
        return steps.gather(hiddens[1:]), steps.last(hiddens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_rows: Tensor, grad_hidden: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_rows.device.type, enabled=False):
            rows, keys, *trace, weight_ih, weight_hh = ctx.saved_tensors
            columns, candidate, grad_state = _unroll_back(ctx.steps, trace, weight_hh, grad_rows, grad_hidden)
            of_hidden = ctx.steps.gather(columns.flatten(1, 2))  # (slots, 3 hidden)
            of_gates = of_hidden[:, : 2 * keys.shape[1]]
            of_input = torch.cat([of_gates, ctx.steps.gather(candidate)], dim=1)  # (slots, 3 hidden)
            for receive, errors in ((ctx.receive_input, of_input), (ctx.receive_hidden, of_hidden)):
                if receive is not None:
                    receive(errors)
            _, _, rows_wanted, _, *wanted = ctx.needs_input_grad
            grad_inputs = of_input @ weight_ih if rows_wanted else None  # (slots, d_in)
            gradients = (
                of_input.mT @ rows if wanted[0] else None,
                of_hidden.mT @ keys if wanted[1] else None,
                of_input.sum(0) if wanted[2] else None,
                of_hidden.sum(0) if wanted[3] else None,
            )
            return None, None, grad_inputs, grad_state, *gradients


def _unroll(steps: Steps, gates: Tensor, hiddens: Tensor, weight_hh: Tensor, bias_hh: Tensor | None) -> Tensor:
    """Make gates and hidden states of what the input adds to the gates; return v_n: (time, hidden, batch)."""
    time, _, width, batch = gates.shape
    bias = (weight_hh.new_zeros(len(weight_hh)) if bias_hh is None else bias_hh).unsqueeze(1)  # (3 hidden, 1)
    recurrent = gates.new_empty(time, width, batch)
    scratch = gates.new_empty(3 * width, batch)
    for gate, old, new, kept in steps.each(gates, hiddens[:-1], hiddens[1:], recurrent):
        v = torch.addmm(bias, weight_hh, old, out=scratch[:, : old.shape[1]]).unflatten(0, (3, width))
        r, z, n = gate.unbind()
        gate[:2].add_(v[:2]).sigmoid_()
        kept.copy_(v[2])
        n.addcmul_(r, kept).tanh_()
        torch.lerp(n, old, z, out=new)
    return recurrent


def _unroll_back(
    steps: Steps, trace: Sequence[Tensor], weight_hh: Tensor, grad_rows: Tensor, grad_hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return errors at "hh" (time, 3, hidden, batch), those at the candidate that "ih" has instead, and dL/dh_0."""
    errors, candidate = _derivatives(*trace)
    transposed = weight_hh.mT.contiguous()  # (hidden, 3 hidden); BLAS is slower on the view
    grad_output = steps.spread(grad_rows).mT.contiguous()  # (time, hidden, batch)
    running = grad_hidden.mT.clone(memory_format=torch.contiguous_format)  # (hidden, batch)
    for grad, error, e_n, z, of_output in steps.each_back([running], errors, candidate, trace[0][:, 1], grad_output):
        grad.add_(of_output)
        e_n.mul_(grad)
        error[1].mul_(grad)
        error[::2].mul_(e_n)
        grad.mul_(z).addmm_(transposed, error.flatten(0, 1))
    return errors, candidate, running.mT


def _derivatives(gates: Tensor, recurrent: Tensor, hiddens: Tensor) -> tuple[Tensor, Tensor]:
    """Return what can be known before the way back: de_r / de_n, de_z / dH_t, r; and de_n / dH_t.

    For all time steps at once, which leaves little to do in each of them.
    """
    r, z, n = gates.unbind(1)  # (time, hidden, batch) each
    errors = torch.empty_like(gates)
    through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
    through_sigmoid(recurrent, r, grad_input=errors[:, 0])
    through_sigmoid(hiddens[:-1] - n, z, grad_input=errors[:, 1])
    errors[:, 2] = r
    return errors, torch.ops.aten.tanh_backward(1 - z, n)

"""Unroll a plain recurrent layer, with its linear map in view.

    a_t = W [x_t; h_(t-1)] + b           W = [weight_ih, weight_hh], b = bias_ih + bias_hh
    h_t = tanh(a_t), or relu(a_t)        hidden state, the layer's output

The gradients come from the errors e_t = dL/da_t, found from the last step to the first. With H_t = dL/dh_t, including
what comes back from step t + 1:

    e_t = H_t (1 - h_t^2), or H_t where h_t > 0
    H_(t-1) = dL/d output_(t-1) + weight_hh^T e_t
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dualform.nn.recurrence import Recurrence, Taps, joint_gradients, joint_keys, joint_map, joint_weight
from dualform.nn.recurrent import Recurrent
from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap


class RNNRecurrence(Recurrence):
    """One map of [x; h], and tanh or relu."""

    def __init__(self, nonlinearity: str) -> None:
        self._relu = nonlinearity == "relu"

    def maps(self, suffix: str, d_in: int, hidden: int, d_out: int) -> dict[str, LinearMap]:
        return {"": joint_map(suffix, d_in, hidden, hidden)}

    def unroll(
        self, taps: Taps, steps: Steps, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        arguments = taps, steps, self._relu, rows, *states, *weights
        unrolled: tuple[Tensor, ...] = _Unroll.apply(*arguments)  # type: ignore[no-untyped-call]
        return unrolled


class RNN(Recurrent, nn.RNN):  # type: ignore[misc]  # takes either sort of input
    """torch.nn.RNN with its linear maps in view: same arguments, parameters, state dict and results.

        rnn = dualform.nn.RNN(28, 64, nonlinearity="relu")
        output, h_n = rnn(input)

    Its maps are "l0", "l1", ...: one of [input, previous hidden state] for each layer; "l0_reverse", where it reads
    backwards, too.
    """

    @property
    def recurrence(self) -> Recurrence:  # type: ignore[override]
        return RNNRecurrence(self.nonlinearity)


class _Unroll(torch.autograd.Function):
    """All time steps, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        taps: Taps,
        steps: Steps,
        relu: bool,
        rows: Tensor,
        hidden: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        blocks = joint_keys(steps, rows, hidden)  # (time + 1, d_in + hidden, batch)
        hiddens = blocks[:, rows.shape[1] :]
        weight, bias = joint_weight(weight_ih, weight_hh, bias_ih, bias_hh)
        for key, new in steps.each(blocks[:-1], hiddens[1:]):
            torch.addmm(bias, weight, key, out=new)
            new.relu_() if relu else new.tanh_()
        keys, on_keys = steps.gather(blocks[:-1]), taps.get("")
        ctx.receive = None if on_keys is None else on_keys(keys)
        ctx.steps, ctx.relu = steps, relu
        ctx.save_for_backward(keys, hiddens, weight_ih, weight_hh)
        return steps.gather(hiddens[1:]), steps.last(hiddens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_rows: Tensor, grad_hidden: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_rows.device.type, enabled=False):
            steps, (keys, hiddens, weight_ih, weight_hh) = ctx.steps, ctx.saved_tensors
            outputs = hiddens[1:]
            columns = (outputs > 0).to(outputs.dtype) if ctx.relu else 1 - outputs.square()  # (time, hidden, batch)
            transposed = weight_hh.mT.contiguous()  # (hidden, hidden); BLAS is slower on the view
            running = grad_hidden.mT.clone(memory_format=torch.contiguous_format)  # (hidden, batch)
            of_output = steps.spread(grad_rows).mT.contiguous()  # (time, hidden, batch)
            for grad, error, of_step in steps.each_back([running], columns, of_output):
                error.mul_(grad.add_(of_step))
                torch.mm(transposed, error, out=grad)
            errors = steps.gather(columns)  # (slots, hidden)
            if ctx.receive is not None:
                ctx.receive(errors)
            _, _, _, rows_wanted, _, *wanted = ctx.needs_input_grad
            grad_inputs = errors @ weight_ih if rows_wanted else None  # (slots, d_in)
            gradients = joint_gradients(keys, errors, wanted, weight_ih.shape[1])
            return None, None, None, grad_inputs, running.mT, *gradients

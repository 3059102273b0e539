"""Define a recurrence, what one layer of a recurrent network does in each time step, and what LSTM and RNN share.

    class Recurrence:
        maps(suffix, d_in, hidden, d_out)           its linear maps, by name
        unroll(taps, steps, rows, states, weights)  rows (slots, d_in) in, rows (slots, d_out) out, with the last states

One file each. What a tap sees is all of a gradient, as with torch.nn.Linear: dL/dW = E^T X, one product of all errors E
(slots, d_out) and all keys X (slots, d_in).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dualform.nn.steps import Steps
from dualform.nn.taps import LinearMap, RowTap

Taps = Mapping[str, RowTap | None]


class Recurrence(ABC):
    """One layer in one direction."""

    states: ClassVar[int] = 1  # how many tensors make its state, of which the first is the hidden state

    @abstractmethod
    def maps(self, suffix: str, d_in: int, hidden: int, d_out: int) -> dict[str, LinearMap]:
        """Return its linear maps by name; "" is the name of one that needs none.

        Args:
            suffix: What the names of its parameters end with, such as "_l0".
            d_in: Entries of its input.
            hidden: Entries of each gate.
            d_out: Entries of its output and its hidden state: `hidden`, unless that is projected.
        """

    @abstractmethod
    def unroll(
        self, taps: Taps, steps: Steps, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Return its output as rows (slots, d_out), and each state after the last step, (batch, d).

        Args:
            taps: Who wants to see the rows of each map.
            steps: Where rows lie in time.
            rows: Its input, (slots, d_in).
            states: The initial ones, (batch, d) each.
            weights: Its parameters, in torch's order; None for a bias that it has not.
        """


def joint_map(suffix: str, d_in: int, d_hidden: int, d_out: int) -> LinearMap:
    """Return the map of [input, previous hidden state]."""
    width = d_in + d_hidden
    return LinearMap(width, d_out, {
        f"weight_ih{suffix}": (0, d_in), f"weight_hh{suffix}": (d_in, width),
        f"bias_ih{suffix}": None, f"bias_hh{suffix}": None,
    })  # fmt: skip


def joint_keys(steps: Steps, rows: Tensor, hidden: Tensor) -> Tensor:
    """Return (time + 1, d_in + hidden, batch), all inputs filled in, and the initial hidden state (batch, hidden).

    The last one will hold a hidden state, but has no input.
    """
    d_in = rows.shape[1]
    keys = rows.new_empty(steps.time + 1, d_in + hidden.shape[1], steps.batch)
    keys[:-1, :d_in] = steps.spread(rows).mT
    keys[0, d_in:] = hidden.mT
    return keys


def joint_weight(
    weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None, bias_hh: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias, a column, of the map of [input, previous hidden state]."""
    weight = torch.cat([weight_ih, weight_hh], dim=1)
    bias = weight.new_zeros(len(weight)) if bias_ih is None or bias_hh is None else bias_ih + bias_hh
    return weight, bias.unsqueeze(1)


def joint_gradients(keys: Tensor, errors: Tensor, wanted: Sequence[bool], d_in: int) -> tuple[Tensor | None, ...]:
    """Return the gradients of weight_ih, weight_hh, bias_ih and bias_hh; None for those that are not wanted."""
    gradients: list[Tensor | None] = [None] * 4
    if any(wanted[:2]):
        gradients[:2] = (errors.mT @ keys).split([d_in, keys.shape[1] - d_in], dim=1)
    if any(wanted[2:]):
        bias = errors.sum(0)
        gradients[2:] = bias, bias.clone()  # both parameters will own theirs
    return tuple(gradient if asked else None for gradient, asked in zip(gradients, wanted, strict=True))

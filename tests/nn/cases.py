"""Equal LSTMs of both kinds, and what is compared of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dualform.nn import LSTM

D_IN, HIDDEN, TIME, BATCH = 3, 4, 5, 2
States = tuple[Tensor, Tensor]
Result = tuple[Tensor, States]

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "output": lambda output, h, c: output.sin().sum(),
    "h_n": lambda output, h, c: h.exp().sum(),
    "c_n": lambda output, h, c: c.square().sum(),
    "h_n and c_n": lambda output, h, c: (h * c).sum(),
    "last output": lambda output, h, c: output[-1].sin().sum(),
    "all": lambda output, h, c: output.sin().sum() + (h * c).sum(),
}


def twins(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.LSTM, LSTM]:
    """Equal modules: the same seed is all it takes."""
    torch.manual_seed(0)
    fused = nn.LSTM(D_IN, HIDDEN, dtype=dtype, **options)
    torch.manual_seed(0)
    return fused, LSTM(D_IN, HIDDEN, dtype=dtype, **options)


def inputs_for(lstm: nn.LSTM, batched: bool = True) -> Tensor:
    batch_dims = ([BATCH, TIME] if lstm.batch_first else [TIME, BATCH]) if batched else [TIME]
    return torch.randn(*batch_dims, D_IN, dtype=lstm.all_weights[0][0].dtype, requires_grad=True)


def states_for(lstm: nn.LSTM, batched: bool = True) -> States:
    shape = [lstm.num_layers, BATCH, HIDDEN] if batched else [lstm.num_layers, HIDDEN]
    h, c = (torch.randn(*shape, dtype=lstm.all_weights[0][0].dtype, requires_grad=True) for _ in range(2))
    return h, c


def gradients(lstm: nn.LSTM, loss: str, inputs: Tensor, states: States | None) -> list[Tensor | None]:
    """Of everything there is: parameters, input, initial states."""
    output, last = lstm(inputs, states)
    wanted = [*lstm.parameters(), inputs, *(states or ())]
    return list(torch.autograd.grad(LOSSES[loss](output, *last), wanted, allow_unused=True))


def weight_gradient(lstm: nn.LSTM, layer: int) -> Tensor:
    grads = [lstm.get_parameter(f"weight_{part}_l{layer}").grad for part in ("ih", "hh")]
    return torch.cat([grad for grad in grads if grad is not None], dim=1)  # (4 hidden, d_in + hidden)


class Spy:
    """A tap that keeps what it is shown."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.errors: list[Tensor] = []

    def __call__(self, keys: Tensor) -> Callable[[Tensor], None]:
        self.keys.append(keys)
        return self.errors.append

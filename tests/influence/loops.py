"""A plain loop in float64 whose influence is asked about: which examples come in which step, with which tags."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.influence.result import Influence
from dualform.store import InMemory

BATCHES, SIZE, EXAMPLES, CLASSES = 7, 5, 12, 3
_numbers = torch.Generator().manual_seed(0)
INPUTS = torch.randn(EXAMPLES, 4, 5, generator=_numbers, dtype=torch.float64)
LABELS = torch.randint(CLASSES, (EXAMPLES, 4), generator=_numbers)
IDS = [torch.randperm(EXAMPLES, generator=_numbers)[:SIZE] for _ in range(BATCHES)]
PROBES = torch.randn(3, 4, 5, generator=_numbers, dtype=torch.float64)
Losses = Callable[[Tensor, Tensor], Tensor]
SQUARES: Losses = lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).double())  # noqa: E731


class Mixed(nn.Module):
    """What is said of each row depends on those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(rows).cumsum(1).tanh())
        return out


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


def record(
    model: nn.Module, optimizers: Any, inputs: Tensor = INPUTS[:, 0], labels: Tensor = LABELS[:, 0],
    losses: Losses = F.cross_entropy, parts: int = 1, clip: float | None = None, **options: Any,
) -> dualform.Memory:  # fmt: skip
    """A plain loop."""
    where, several = InMemory(), optimizers if isinstance(optimizers, list) else [optimizers]
    tags = options.pop("tags", ("id", "label"))
    with dualform.record(model, optimizers, where, **{"dtype": "float64", **options}) as recorder:
        for ids in IDS:
            for part in ids.chunk(parts):
                known = {"id": part, "label": labels[part]}
                recorder.tag(**{name: known[name] for name in tags})
                out, wanted = model(inputs[part]), labels[part]
                flat = (out.flatten(0, -2), wanted.flatten()) if out.dim() == 3 else (out, wanted)
                (losses(*flat) * len(part) / len(ids)).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for optimizer in several:
                optimizer.step()
                optimizer.zero_grad()
    return dualform.load(where)


def margin(logits: Tensor, classes: Tensor) -> Tensor:
    chosen = F.one_hot(classes, logits.shape[1]).bool()
    return logits[chosen] - logits.masked_fill(chosen, -torch.inf).logsumexp(1)


def sgd(part: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(part.parameters(), **{"lr": 0.2, **options})


def ask(memory: dualform.Memory, model: nn.Module, **options: Any) -> Influence:
    return memory.influence(model, PROBES[:, 0], torch.tensor([0, 2, 1]), **options)

"""Tiny trainings that can be run again: models of every sort, and recipes that train them.

recipe = recipe_of("conv", "AdamW", {"lr": 0.01}, clip=0.5)
recipe.train(path, 9, every=4, keep="snapshots")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.recipe.recipe import Batch

EXAMPLES, BATCH, CLASSES = 24, 6, 3
_numbers = torch.Generator().manual_seed(0)
IMAGES = torch.randn(EXAMPLES, 2, 4, 4, generator=_numbers)
TOKENS = torch.randint(10, (EXAMPLES, 5), generator=_numbers)
LABELS = torch.randint(CLASSES, (EXAMPLES,), generator=_numbers)


def rows(step: int) -> Tensor:
    """The numbers of a step's examples."""
    return torch.tensor([(step * 5 + i * 7) % EXAMPLES for i in range(BATCH)])


def batch(step: int) -> dict[str, Any]:
    """A step's examples, as everything that a model can be called with."""
    ids = rows(step)
    images = IMAGES[ids]
    return {
        "id": ids, "label": LABELS[ids], "images": images, "tokens": TOKENS[ids],
        "flat": images.flatten(1)[:, :6], "sequence": images.flatten(2),
    }  # fmt: skip


class WordsOf(nn.Module):
    """The mean of embedded tokens, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(tokens).mean(1))
        return out


class Remembers(nn.Module):
    """An LSTM, whose state may be handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = dualform.nn.LSTM(16, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, sequence: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.lstm(sequence, state)
        return self.head(hidden[:, -1]), state


def losses_of(entry: str) -> Callable[[nn.Module, Batch], Tensor]:
    def losses(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[entry])
        out = out[0] if isinstance(out, tuple) else out
        return F.cross_entropy(out, batch["label"], reduction="none")

    return losses


def carried_losses(model: nn.Module, batch: Batch, state: Any) -> tuple[Tensor, Any]:
    out, state = model(batch["sequence"], state)
    return F.cross_entropy(out, batch["label"], reduction="none"), state


@dataclass(frozen=True)
class Task:
    """A model, and how it is asked for its losses."""

    model: Callable[[], nn.Module]
    losses: Callable[..., Any]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def conv() -> nn.Module:
    # a bias before a norm has no gradient but rounding, which Adam magnifies
    normed = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
    return nn.Sequential(*normed, nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES))


TASKS = {
    "mlp": Task(mlp, losses_of("flat")),
    "dropout": Task(dropout, losses_of("flat")),
    "conv": Task(conv, losses_of("images")),
    "words": Task(WordsOf, losses_of("tokens")),
    "lstm": Task(Remembers, losses_of("sequence")),
    "carried": Task(Remembers, carried_losses),
}


def optimizer_of(name: str, options: Mapping[str, Any]) -> Callable[[nn.Module], Any]:
    """Of a name such as "SGD"; of two with a plus between them, the second one steps all that are no matrices."""
    kinds = [getattr(torch.optim, kind) for kind in name.split("+")]

    def make(model: nn.Module) -> Any:
        if len(kinds) == 1:
            return kinds[0](model.parameters(), **options)
        matrices = [p for p in model.parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if p.dim() != 2]
        return [kinds[0](matrices, **options), kinds[1](others, lr=0.01)]

    return make


def recipe_of(
    task: str = "mlp", optimizer: str = "SGD", options: Mapping[str, Any] | None = None, **entries: Any
) -> dualform.Recipe:
    """A recipe; `entries` are any that are to be others."""
    made = optimizer_of(optimizer, {"lr": 0.1} if options is None else options)
    usual = {"model": TASKS[task].model, "optimizer": made, "batch": batch, "losses": TASKS[task].losses}
    return dualform.Recipe(**{**usual, "tags": ["label"], **entries})


def assert_same_state(model: nn.Module, expected: nn.Module) -> None:
    """To the last bit."""
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)

"""Tiny smooth trainings in float64, each visit of which has a number, and their derivatives by differences.

memory, model = trained(recipe("mlp", "SGD", {"lr": 0.1}))
differences(recipe, direction, around=1.0, measure=...)      # along a change of the weights of all visits
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from dualform.recipe.recipe import Batch
from dualform.recipe.repeatable import repeatable
from dualform.recipe.training import Training
from dualform.store import InMemory
from tests.recipe.trainings import WordsOf, optimizer_of

STEPS, BATCH, EXAMPLES, CLASSES = 6, 6, 12, 3
VISITS = STEPS * BATCH
_numbers = torch.Generator().manual_seed(0)
IMAGES = torch.randn(EXAMPLES, 2, 3, 3, generator=_numbers, dtype=torch.float64)
TOKENS = torch.randint(10, (EXAMPLES, 5), generator=_numbers)
LABELS = torch.randint(CLASSES, (EXAMPLES,), generator=_numbers)
TESTS = {"images": IMAGES[:4] + 0.3, "tokens": TOKENS[:4].flip(1)}
TESTS |= {"flat": TESTS["images"].flatten(1)[:, :5], "sequence": TESTS["images"].flatten(2)}


def batch(step: int) -> dict[str, Any]:
    """A step's examples, as everything that a model can be called with."""
    ids = torch.tensor([(step * 5 + i * 7) % EXAMPLES for i in range(BATCH)])
    images = IMAGES[ids]
    return {
        "id": ids, "label": LABELS[ids], "visit": step * BATCH + torch.arange(BATCH), "images": images,
        "tokens": TOKENS[ids], "flat": images.flatten(1)[:, :5], "sequence": images.flatten(2), "even": step % 2 == 0,
        "place": torch.arange(5).expand(BATCH, 5),
    }  # fmt: skip


class Reads(nn.Module):
    """A recurrent network, of torch's or of this library's own."""

    def __init__(self, lstm: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.lstm, self.head = lstm(9, 4, batch_first=True, **options), nn.Linear(4, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(sequence)[0][:, -1])
        return out


class Speaks(nn.Module):
    """A token for each token, with its time first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.words(tokens.mT)  # (time, batch, d)
        out: Tensor = self.head((self.mix(words).cumsum(0) * 0.3).tanh())
        return out


class TwoHeads(nn.Module):
    """Every other step goes through another head, which is in no loss of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(5, 4), nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, flat: Tensor, first: bool = True) -> Tensor:
        hidden = self.body(flat).tanh()
        out: Tensor = self.first(hidden) if first else self.second(hidden)
        return out


class Aside(nn.Module):
    """Has parameters that no optimiser steps, though they have gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, flat: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(flat).tanh())
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    model[2].requires_grad_(False)
    return model


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.4), nn.Tanh(), nn.Linear(6, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, CLASSES))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2, padding=1), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "mlp": (mlp, "flat"), "frozen": (frozen, "flat"), "dropout": (dropout, "flat"), "normed": (normed, "flat"),
    "conv": (conv, "images"), "words": (WordsOf, "tokens"), "speaks": (Speaks, "tokens"), "heads": (TwoHeads, "flat"),
    "aside": (Aside, "flat"),
    "lstm": (lambda: Reads(nn.LSTM), "sequence"), "own lstm": (lambda: Reads(dualform.nn.LSTM), "sequence"),
    "dropping lstm": (lambda: Reads(dualform.nn.LSTM, num_layers=2, dropout=0.5), "sequence"),
}  # fmt: skip


def losses_of(entry: str) -> Callable[[nn.Module, Batch], Tensor]:
    def losses(model: nn.Module, batch: Batch) -> Tensor:
        if isinstance(model, Speaks):
            logits = model(batch["tokens"][:, :-1]).transpose(0, 1)
            return F.cross_entropy(logits.mT, batch["tokens"][:, 1:], reduction="none")
        out = model(batch[entry], batch["even"]) if isinstance(model, TwoHeads) else model(batch[entry])
        return F.cross_entropy(out, batch["label"], reduction="none")

    return losses


def recipe(model: str = "mlp", optimizer: str = "SGD", options: Any = None, **entries: Any) -> dualform.Recipe:
    """A recipe; `entries` are any that are to be others."""
    make, entry = MODELS[model]
    of_all = optimizer_of(optimizer, options or {"lr": 0.2})
    stepped = (lambda model: of_all(model.second)) if model == "aside" else of_all
    usual = {
        "model": lambda: make().double(), "optimizer": stepped, "batch": batch,
        "losses": losses_of(entry), "tags": ["label", "visit"],
    }  # fmt: skip
    return dualform.Recipe(**{**usual, **entries})


def trained(recipe: dualform.Recipe, steps: int = STEPS, **options: Any) -> tuple[dualform.Memory, nn.Module]:
    """A memory of it, and the model that it ends with."""
    where = InMemory()
    options = {"keep": "snapshots", "threads": 1, **options}
    model = recipe.train(where, steps, **options)
    return dualform.load(where, recipe), model


def differences(
    recipe: dualform.Recipe, direction: Tensor, around: float, measure: Callable[[nn.Module], Tensor], size: float
) -> Tensor:
    """The derivative of what is measured of a trained model, by differences of the fourth order: (tests,)."""

    def weighed(by: float) -> Tensor:
        own = recipe.weigh
        weigh = lambda batch: (around + by * direction[batch["visit"]]) * (1 if own is None else own(batch))  # noqa: E731
        with repeatable(1), torch.no_grad():
            training = Training(replace(recipe, weigh=weigh))
            with torch.enable_grad():
                for _ in range(STEPS):
                    training.take_step()
            return measure(training.model.eval()).double()

    near, far = (weighed(k * size) - weighed(-k * size) for k in (1, 2))
    return (8 * near - far) / (12 * size)

"""Train a language model by truncated back-propagation, and record it, every token tagged with its position.

The training text is cut into as many streams as there are rows in a batch. Each step reads the next tokens of
every stream, beginning with the state after the step before; a new epoch begins with an empty state.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.language.network import FACTORY, LAYER, LanguageModel, State
from dualform.experiments.loops import SNAPSHOTS, seeded
from dualform.text import Text

TEXT = "text.json"  # the training text, in the directory of the run
Progress = Callable[[int, str], None]  # called with the number of a finished step, and a note

MERGED, KEYS, VALUES = "merged", "keys", "values"  # what is kept of the LSTM's slots, if it is not SNAPSHOTS
_RECORD_OPTIONS: dict[str, dict[str, Any]] = {
    MERGED: {"merge": "position"},
    KEYS: {"values": False},
    VALUES: {"dtype": "float16"},
    SNAPSHOTS: {"keep": SNAPSHOTS, "dtype": "float16"},
}

_STEPS_PER_PERPLEXITY = 20  # whose mean loss makes a perplexity in the results
_MAX_TEST_STREAMS, _TEST_SPAN = 16, 200  # rows, and tokens of each at once, in which a test text is read
_RUNNING_DECAY = 0.95  # of the mean loss that is shown while training


@dataclass(frozen=True)
class LanguageHyperparameters:
    """How a language model is trained."""

    embedding: int
    hidden: int
    dropout: float
    lr: float
    clip: float
    batch: int
    span: int  # tokens of a stream in one step: how far errors are propagated back
    steps: int

    def network(self, vocabulary: int) -> LanguageModel:
        """Make the model for a vocabulary of this size."""
        return LanguageModel(**self.sizes(vocabulary))  # type: ignore[arg-type]

    def sizes(self, vocabulary: int) -> dict[str, int | float]:
        """Return the arguments of the model for a vocabulary of this size."""
        return {
            "vocabulary": vocabulary, "embedding": self.embedding, "hidden": self.hidden, "dropout": self.dropout,
        }  # fmt: skip


@dataclass(frozen=True)
class TrainedLanguageModel:
    """A trained model, and how its training went."""

    model: LanguageModel
    recipe: dualform.Recipe
    perplexity: list[tuple[int, float]]  # on the training text, as it was read: step, mean over the steps before
    seconds: float


def training_recipe(text: Text, hparams: LanguageHyperparameters, seed: int) -> dualform.Recipe:
    """Return how a language model is trained on a text.

    Args:
        text: to train on.
        hparams: how to make and train the model.
        seed: of the initial weights and of dropout.
    """
    streams = Streams(text, hparams)

    def losses(model: nn.Module, batch: Mapping[str, Any], state: State | None) -> tuple[Tensor, State]:
        before = None if batch["position"][0, 0] == 0 else state  # a new epoch
        logits, after = model(batch["token"], before)
        targets = batch["target"]  # (batch, span)
        of_each = F.cross_entropy(logits.flatten(end_dim=1), targets.flatten(), reduction="none")
        return of_each.view(targets.shape), after

    return dualform.Recipe(
        model=lambda: seeded(lambda: hparams.network(len(text.vocabulary)), seed),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=hparams.lr),
        batch=streams.batch,
        losses=losses,
        tags=["position"],
        seed=seed,
        clip=hparams.clip,
    )


def train(
    text: Text,
    hparams: LanguageHyperparameters,
    path: Path,
    *,
    seed: int,
    kept: str,
    about: Mapping[str, Any] | None = None,
    progress: Progress = lambda step, note: None,
) -> TrainedLanguageModel:
    """Train on a text, and record the LSTM.

    Args:
        text: to train on.
        hparams: how to make and train the model.
        path: of the run.
        seed: of the initial weights and of dropout.
        kept: what is recorded: keys summed over visits (MERGED), keys (KEYS), keys and values (VALUES), or nothing
            but what it takes to make them again (SNAPSHOTS).
        about: what else the run says of itself.
        progress: called with the number of each finished step, and the perplexity.
    """
    sizes = hparams.sizes(len(text.vocabulary))
    about = {"model": FACTORY, "arguments": sizes, "text": TEXT, **(about or {})}
    recipe, log, began = training_recipe(text, hparams, seed), _LossLog(), perf_counter()
    model = log.followed(recipe).train(
        path,
        hparams.steps,
        layers=LAYER,
        about=about,
        progress=lambda step: progress(step, f"perplexity {math.exp(log.running):,.1f}"),
        **_RECORD_OPTIONS[kept],
    )
    text.save(path / TEXT)
    assert isinstance(model, LanguageModel)
    return TrainedLanguageModel(model, recipe, log.perplexities(), perf_counter() - began)


class _LossLog:
    """Collects losses: their running mean is shown while training, means over several steps are kept."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self.running = 0.0

    def followed(self, recipe: dualform.Recipe) -> dualform.Recipe:
        """Return a recipe whose losses are collected as it trains."""

        def losses(model: nn.Module, batch: Mapping[str, Any], state: State | None) -> tuple[Tensor, State]:
            of_each, after = recipe.losses(model, batch, state)
            self.add(float(of_each.detach().mean()))
            return of_each, after

        return replace(recipe, losses=losses)

    def add(self, loss: float) -> None:
        self.running = _RUNNING_DECAY * self.running + (1 - _RUNNING_DECAY) * loss if self._losses else loss
        self._losses.append(loss)

    def perplexities(self) -> list[tuple[int, float]]:
        """Return perplexities over several steps, each with the number of steps until its end."""
        starts = range(0, len(self._losses), _STEPS_PER_PERPLEXITY)
        parts = [self._losses[start : start + _STEPS_PER_PERPLEXITY] for start in starts]
        return [(start + len(part), math.exp(sum(part) / len(part))) for start, part in zip(starts, parts, strict=True)]


class Streams:
    """The training text in as many streams as a batch has rows; a short text has fewer.

    A row of a batch is a passage of a stream, and its id is the position that it begins at.
    """

    def __init__(self, text: Text, hparams: LanguageHyperparameters) -> None:
        self._ids = torch.from_numpy(text.ids)
        batch = max(1, min(hparams.batch, (len(text) - 1) // (hparams.span + 1)))
        length = (len(text) - 1) // batch
        self._span = min(hparams.span, length)
        self._starts = torch.arange(batch)[:, None] * length  # (batch, 1)
        self._per_epoch = length // self._span

    def batch(self, step: int) -> dict[str, Tensor]:
        """Return the tokens of a step, the tokens that follow them, and their positions; all (batch, span)."""
        positions = self._starts + step % self._per_epoch * self._span + torch.arange(self._span)  # (batch, span)
        return {
            "id": positions[:, 0],
            "token": self._ids[positions],
            "target": self._ids[positions + 1],
            "position": positions,
        }


def perplexity(model: LanguageModel, text: Text) -> float:
    """Return the perplexity of a test text, which is read in several streams at once."""
    ids = torch.from_numpy(text.ids)
    rows = max(1, min(_MAX_TEST_STREAMS, (len(text) - 1) // _TEST_SPAN))
    length = (len(text) - 1) // rows
    inputs, targets = (ids[first : first + rows * length].view(rows, length) for first in (0, 1))
    total, state = 0.0, None
    model.eval()
    with torch.no_grad():
        for first in range(0, length, _TEST_SPAN):
            logits, state = model(inputs[:, first : first + _TEST_SPAN], state)
            expected = targets[:, first : first + _TEST_SPAN]
            total += float(F.cross_entropy(logits.flatten(end_dim=1), expected.flatten(), reduction="sum"))
    return math.exp(total / targets.numel())

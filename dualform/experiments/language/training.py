"""Train a language model by truncated back-propagation, and record it, every token tagged with its position.

The training text is cut into as many streams as there are rows in a batch. Each step reads the next tokens of
every stream, beginning with the state after the step before; a new epoch begins with an empty state.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.language.network import FACTORY, LAYER, LanguageModel, State
from dualform.experiments.loops import seeded
from dualform.text import Text

TEXT = "text.json"  # the training text, in the directory of the run
Progress = Callable[[int, str], None]  # called with the number of a finished step, and a note

MERGED, KEYS, VALUES = "merged", "keys", "values"  # what is kept of the LSTM's slots
_RECORD_OPTIONS: dict[str, dict[str, Any]] = {
    MERGED: {"merge": "position"},
    KEYS: {"values": False},
    VALUES: {"dtype": "float16"},
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
    perplexity: list[tuple[int, float]]  # on the training text, as it was read: step, mean over the steps before
    seconds: float


def train(
    text: Text,
    hparams: LanguageHyperparameters,
    path: Path,
    *,
    seed: int,
    kept: str,
    progress: Progress = lambda step, note: None,
) -> TrainedLanguageModel:
    """Train on a text, and record the LSTM.

    Args:
        text: to train on.
        hparams: how to make and train the model.
        path: of the run.
        seed: of the initial weights and of dropout.
        kept: what is recorded: keys summed over visits (MERGED), keys (KEYS), or keys and values (VALUES).
        progress: called with the number of each finished step, and the perplexity.
    """
    model = seeded(lambda: hparams.network(len(text.vocabulary)), seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=hparams.lr)
    about = {"model": FACTORY, "arguments": hparams.sizes(len(text.vocabulary)), "text": TEXT}
    losses, began = _LossLog(), perf_counter()
    with (
        torch.random.fork_rng(devices=[]),  # dropout draws from the global generator
        dualform.record(model, optimizer, path, layers=LAYER, about=about, **_RECORD_OPTIONS[kept]) as recorder,
    ):
        torch.manual_seed(seed)
        state: State | None = None
        for step, (tokens, targets, positions) in enumerate(batches(text, hparams)):
            recorder.tag(position=positions)
            before = None if positions[0, 0] == 0 else state  # a new epoch
            logits, (hidden, cell) = model(tokens, before)
            state = (hidden.detach(), cell.detach())  # no error goes back into the step before
            loss = F.cross_entropy(logits.flatten(end_dim=1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), hparams.clip)
            optimizer.step()
            losses.add(loss.item())
            progress(step, f"perplexity {math.exp(losses.running):,.1f}")
    text.save(path / TEXT)
    return TrainedLanguageModel(model, losses.perplexities(), perf_counter() - began)


class _LossLog:
    """Collects losses: their running mean is shown while training, means over several steps are kept."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self.running = 0.0

    def add(self, loss: float) -> None:
        self.running = _RUNNING_DECAY * self.running + (1 - _RUNNING_DECAY) * loss if self._losses else loss
        self._losses.append(loss)

    def perplexities(self) -> list[tuple[int, float]]:
        """Return perplexities over several steps, each with the number of steps until its end."""
        starts = range(0, len(self._losses), _STEPS_PER_PERPLEXITY)
        parts = [self._losses[start : start + _STEPS_PER_PERPLEXITY] for start in starts]
        return [(start + len(part), math.exp(sum(part) / len(part))) for start, part in zip(starts, parts, strict=True)]


def batches(text: Text, hparams: LanguageHyperparameters) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each step tokens, the tokens that follow them, and their positions; all (batch, span)."""
    ids = torch.from_numpy(text.ids)
    batch = max(1, min(hparams.batch, (len(text) - 1) // (hparams.span + 1)))  # a short text has fewer streams
    length = (len(text) - 1) // batch
    span = min(hparams.span, length)
    starts = torch.arange(batch)[:, None] * length  # (batch, 1)
    per_epoch = length // span
    for step in range(hparams.steps):
        positions = starts + step % per_epoch * span + torch.arange(span)  # (batch, span)
        yield ids[positions], ids[positions + 1], positions


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

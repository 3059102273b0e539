"""How good are the spotlights? Measured, over queries from the test text.

Of the ten training positions with the highest summed attention: how many have the query's own token, and how
many are followed by the token that the model expects next? Set beside two ways that need no recording: any
position at all, and the positions whose token is nearest to the query's in the input embedding alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dualform
from dualform.experiments.language.answers import POSITION, next_logits
from dualform.experiments.language.network import LAYER, LanguageModel
from dualform.text import Text

QUERIES, TOP = 200, 10
_CONTEXT = {"": 100, " ": 35}  # tokens the model reads up to and with the query


@dataclass(frozen=True)
class HitRates:
    """Mean shares of positions, between 0 and 1."""

    token: float  # whose token is the query's
    following: float  # whose next token is the one the model expects


@dataclass(frozen=True)
class Quality:
    """Of attention, and of what it is to be compared with."""

    queries: int
    attention: HitRates
    embedding: HitRates
    anywhere: HitRates

    def to_dict(self) -> dict[str, Any]:
        ways = {"attention": self.attention, "embedding": self.embedding, "anywhere": self.anywhere}
        return {"queries": self.queries, "top": TOP, **{name: vars(way) for name, way in ways.items()}}


def measure(memory: dualform.Memory, model: LanguageModel, text: Text, test: Text, seed: int = 0) -> Quality:
    """Ask about the ends of random stretches of the test text."""
    prompts = _prompts(test, seed)
    asked = prompts[:, -1].numpy()  # (queries,)
    expected: NDArray[np.int64] = next_logits(model, prompts).argmax(dim=1).numpy()
    table = memory.attend(model, prompts, rows=-1)[LAYER].top(TOP, per=POSITION)
    query, position = table["query"], table[POSITION]
    hits, following = text.ids[position] == asked[query], text.ids[position + 1] == expected[query]
    return Quality(
        queries=len(prompts),
        attention=HitRates(float(hits.mean()), float(following.mean())),
        embedding=_by_embedding(model, text, asked, expected),
        anywhere=_anywhere(text, asked, expected),
    )


def _prompts(test: Text, seed: int) -> Tensor:
    """(queries, context)"""
    context = min(_CONTEXT[test.separator], len(test))
    ends = np.random.default_rng(seed).choice(len(test) - context + 1, min(QUERIES, len(test) - context + 1), False)
    return torch.from_numpy(test.ids)[torch.from_numpy(ends)[:, None] + torch.arange(context)]


def _anywhere(text: Text, asked: NDArray[np.int64], expected: NDArray[np.int64]) -> HitRates:
    frequency = np.bincount(text.ids, minlength=len(text.vocabulary)) / len(text)
    return HitRates(float(frequency[asked].mean()), float(frequency[expected].mean()))


def _by_embedding(model: LanguageModel, text: Text, asked: NDArray[np.int64], expected: NDArray[np.int64]) -> HitRates:
    """By cosine. Positions with the same token are all equally near: they count by their mean."""
    directions = torch.nn.functional.normalize(model.embedding.weight.detach(), dim=1)
    nearness = (directions[torch.from_numpy(asked)] @ directions.mT).numpy()  # (queries, vocabulary)
    count = np.bincount(text.ids[:-1], minlength=len(text.vocabulary))
    pairs, often = np.unique(np.stack([text.ids[:-1], text.ids[1:]]), axis=1, return_counts=True)
    times = dict(zip(zip(*pairs.tolist(), strict=True), often.tolist(), strict=True))  # (token, next) -> how often
    found = [
        _filled(np.argsort(-near, kind="stable"), count, token, following, times)
        for near, token, following in zip(nearness, asked.tolist(), expected.tolist(), strict=True)
    ]
    shares = np.array(found).mean(axis=0)
    return HitRates(float(shares[0]), float(shares[1]))


def _filled(
    order: NDArray[np.int64], count: NDArray[np.int64], asked: int, expected: int, times: dict[tuple[int, int], int]
) -> tuple[float, float]:
    """The shares of the TOP positions, filled up with the positions of the nearest tokens."""
    left, hits, following = float(TOP), 0.0, 0.0
    for token in order.tolist():
        taken = min(left, float(count[token]))
        if taken:
            hits += taken * (token == asked)
            following += taken * times.get((token, expected), 0) / count[token]
            left -= taken
        if not left:
            break
    return hits / TOP, following / TOP

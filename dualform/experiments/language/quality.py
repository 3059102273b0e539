"""Measure how good the spotlights are, over queries from the test text.

Of the ten training positions with the highest summed attention: how many have the query's own token, and how
many are followed by the token that the model expects next? Compared with two baselines that need no recording:
random positions, and the positions whose token is nearest to the query's in the input embedding.
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
_CONTEXT = {"": 100, " ": 35}  # tokens that the model reads, the query included, by separator


@dataclass(frozen=True)
class HitRates:
    """Mean shares of the top positions, between 0 and 1."""

    token: float  # whose token is the query's
    following: float  # whose next token is the one that the model expects


@dataclass(frozen=True)
class Quality:
    """Hit rates of attention and of the baselines."""

    queries: int
    attention: HitRates
    embedding: HitRates
    anywhere: HitRates

    def to_dict(self) -> dict[str, Any]:
        methods = {"attention": self.attention, "embedding": self.embedding, "anywhere": self.anywhere}
        return {"queries": self.queries, "top": TOP, **{name: vars(rates) for name, rates in methods.items()}}


def measure(memory: dualform.Memory, model: LanguageModel, text: Text, test: Text, seed: int = 0) -> Quality:
    """Measure hit rates for random prompts from the test text."""
    prompts = sample_prompts(test, seed)
    queries = prompts[:, -1].numpy()  # (queries,)
    expected: NDArray[np.int64] = next_logits(model, prompts).argmax(dim=1).numpy()
    table = memory.attend(model, prompts, rows=-1)[LAYER].top(TOP, per=POSITION)
    query, position = table["query"], table[POSITION]
    hits, following = text.ids[position] == queries[query], text.ids[position + 1] == expected[query]
    frequency = np.bincount(text.ids, minlength=len(text.vocabulary)) / len(text)
    return Quality(
        queries=len(prompts),
        attention=HitRates(float(hits.mean()), float(following.mean())),
        embedding=_by_embedding(model, text, queries, expected),
        anywhere=HitRates(float(frequency[queries].mean()), float(frequency[expected].mean())),
    )


def sample_prompts(test: Text, seed: int) -> Tensor:
    """Return random prompts from the test text, (queries, context)."""
    context = min(_CONTEXT[test.separator], len(test))
    starts = len(test) - context + 1
    chosen = torch.from_numpy(np.random.default_rng(seed).choice(starts, min(QUERIES, starts), False))
    return torch.from_numpy(test.ids)[chosen[:, None] + torch.arange(context)]


def _by_embedding(
    model: LanguageModel, text: Text, queries: NDArray[np.int64], expected: NDArray[np.int64]
) -> HitRates:
    """Return hit rates of the nearest tokens by cosine; positions with the same token count by their mean."""
    directions = torch.nn.functional.normalize(model.embedding.weight.detach(), dim=1)
    cosines = (directions[torch.from_numpy(queries)] @ directions.mT).numpy()  # (queries, vocabulary)
    count = np.bincount(text.ids[:-1], minlength=len(text.vocabulary))
    pairs, counts = np.unique(np.stack([text.ids[:-1], text.ids[1:]]), axis=1, return_counts=True)
    pair_count = dict(zip(zip(*pairs.tolist(), strict=True), counts.tolist(), strict=True))  # (token, next) -> count
    shares = []
    for row, query, following in zip(cosines, queries.tolist(), expected.tolist(), strict=True):
        left, same, next_same = float(TOP), 0.0, 0.0
        for token in np.argsort(-row, kind="stable").tolist():
            taken = min(left, float(count[token]))
            if taken:
                same += taken * (token == query)
                next_same += taken * pair_count.get((token, following), 0) / count[token]
                left -= taken
            if not left:
                break
        shares.append((same / TOP, next_same / TOP))
    hits, followed = np.array(shares).mean(axis=0)
    return HitRates(float(hits), float(followed))

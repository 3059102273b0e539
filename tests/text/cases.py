"""Texts, hits and passages to test with."""

import html
import re
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dualform.table import Table
from dualform.text import Passage, Text, passages

FABLES = (
    "The Wolf ran away as fast as he could, and was not seen there again for many a single day.\n\n"
    "The Hares started together, running as fast as they could to get out of the forest.\n\n"
    "The Mule made room for him as fast as he could, and the Horse went proudly on his way."
)
SENTENCES = (
    "he was known for his contribution to the film and later , in the same year , won a prize for his "
    "contribution as a writer <eos> Her main role was small but it was praised by all of the critics at the time"
)


def text_of(tokens: list[str], separator: str, titles: tuple[tuple[int, str], ...] = ()) -> Text:
    vocabulary = tuple(dict.fromkeys(tokens))
    return Text(np.array([vocabulary.index(token) for token in tokens], np.int64), vocabulary, separator, titles)


def table(*positions: int, **columns: Any) -> Table:
    scores = np.arange(len(positions), 0, -1).astype(float)
    return Table({"position": np.array(positions, np.int64), "score": scores, **columns})


def ends_of(words: str, content: str) -> list[int]:
    """The last position of each occurrence."""
    return [found.end() - 1 for found in re.finditer(words, content)]


def bare(markup: str) -> str:
    """What a browser shows of a piece of HTML."""
    return html.unescape(re.sub("<[^>]*>", "", markup))


fables = text_of(list(FABLES), "", titles=((0, "THE WOLF"), (92, "THE HARES"), (177, "THE MULE")))
sentences = text_of(SENTENCES.split(), " ")

signs = st.sampled_from("abc1 \n.,-+#*_`|<>[]()&$~\\é\x1b\x07\x7f\u202e\ud800\u200d")
tokens_of = {"": signs, " ": st.text(signs, max_size=3)}


@st.composite
def texts(draw: st.DrawFn, most: int = 200) -> Text:
    separator = draw(st.sampled_from(list(tokens_of)))
    tokens = draw(st.lists(tokens_of[separator], min_size=1, max_size=most))
    starts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    return text_of(tokens, separator, tuple((start, draw(st.text(max_size=5))) for start in starts))


@st.composite
def hits(draw: st.DrawFn) -> tuple[Text, Table]:
    text = draw(texts())
    positions = draw(st.lists(st.integers(0, len(text) - 1), max_size=8, unique=True))
    return text, table(*positions)


@st.composite
def marked(draw: st.DrawFn) -> Passage:
    text = draw(texts(most=12))
    positions = draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=4, unique=True))
    return passages(text, table(*positions), most=1)[0]

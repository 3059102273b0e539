"""Texts in numbers: one for each character, or one for each word.

    train, test = words(corpus)             # two `Text`s of one vocabulary, that of the training text
    encode_prompt("the Lamb a little", train)

What only the test text has is written as the unknown token there. Words of prose are also told from punctuation;
in WikiText everything is already set apart by spaces, and each line end is a token.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dualform.datasets.corpus import Corpus, Part, Words
from dualform.errors import QueryError, listing
from dualform.text import Text

UNKNOWN_CHARACTER = "\ufffd"
UNKNOWN_WORD = "<unk>"
LINE_END = "<eos>"

# Words hold together at hyphens and apostrophes; a row of one mark is one token: an ellipsis, an underline.
_WORD = r"\w+(?:[-'’]\w+)*|([^\w\s])\1*"
_PROSE = re.compile(_WORD)
# A text never has these names whole, being made of marks and a word, so that they always mean the tokens.
_PROMPT = re.compile(f"(?:{UNKNOWN_WORD}|{LINE_END})|{_WORD}")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by number and numbers by token."""

    tokens: tuple[str, ...]
    unknown: str  # one of them, standing for all others

    @cached_property
    def number(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """(tokens,)"""
        number = self.number
        unknown = number[self.unknown]
        return np.fromiter((number.get(token, unknown) for token in tokens), np.int64, len(tokens))


def characters(corpus: Corpus) -> tuple[Text, Text]:
    """The training and the test text, a character at each position."""
    vocabulary = Vocabulary(tuple(sorted({*corpus.train.text, UNKNOWN_CHARACTER})), UNKNOWN_CHARACTER)
    train, test = (
        Text(vocabulary.encode(part.text), vocabulary.tokens, separator="", titles=part.titles)
        for part in (corpus.train, corpus.test)
    )
    return train, test


def words(corpus: Corpus) -> tuple[Text, Text]:
    """The training and the test text, a word at each position; the most frequent words have the lowest numbers."""
    (train, train_titles), (test, test_titles) = (_split(part, corpus.words) for part in (corpus.train, corpus.test))
    counts = Counter(train)
    counts[UNKNOWN_WORD] += 0
    vocabulary = Vocabulary(tuple(sorted(counts, key=lambda word: (-counts[word], word))), UNKNOWN_WORD)
    return (
        Text(vocabulary.encode(train), vocabulary.tokens, separator=" ", titles=train_titles),
        Text(vocabulary.encode(test), vocabulary.tokens, separator=" ", titles=test_titles),
    )


def encode_prompt(prompt: str, text: Text) -> NDArray[np.int64]:
    """A prompt in the tokens of a training text, all of which it has to know."""
    tokens = _prompt_tokens(prompt, text)
    kind = _kind(text)
    if not tokens:
        raise QueryError(f"the prompt holds no {kind}s; give some of the kind the model has learnt")
    number = {token: number for number, token in enumerate(text.vocabulary)}
    if strange := [token for token in dict.fromkeys(tokens) if token not in number]:
        hint = f"; {UNKNOWN_WORD} stands for any word it does not know" if UNKNOWN_WORD in number else ""
        raise QueryError(f"the training text has no {kind} {listing(strange)}{hint}")
    if len(tokens) > len(text):
        raise QueryError(f"the prompt has {len(tokens):,} {kind}s, more than the {len(text):,} of the training text")
    return np.array([number[token] for token in tokens], np.int64)


def replace_unknown(prompt: str, text: Text) -> str:
    """A prompt with the unknown word in place of words that the training text has not; characters stay."""
    if _kind(text) == "character":
        return prompt
    known = set(text.vocabulary)
    return " ".join(token if token in known else UNKNOWN_WORD for token in _prompt_tokens(prompt, text))


def _split(part: Part, style: Words) -> tuple[list[str], tuple[tuple[int, str], ...]]:
    """The words of a text, and its titles at the numbers of their first words."""
    tokens = _wikitext if style == "wikitext" else _prose
    starts = [start for start, _ in part.titles]
    found: list[str] = []
    positions = []
    # Piece by piece: what is found so far is how many words there are before a title.
    for start, end in zip([0, *starts], [*starts, len(part.text)], strict=True):
        positions.append(len(found))
        found += tokens(part.text[start:end])
    titles = zip(positions[1:], (title for _, title in part.titles), strict=True)
    return found, tuple(titles)


def _wikitext(text: str) -> list[str]:
    return text.replace("\n", f" {LINE_END} ").split()


def _prose(text: str) -> list[str]:
    return [token[0] for token in _PROSE.finditer(text)]


def _prompt_tokens(prompt: str, text: Text) -> list[str]:
    if _kind(text) == "character":
        return list(prompt)
    if LINE_END in text.vocabulary:  # which prose never has
        return prompt.split()
    return [token[0] for token in _PROMPT.finditer(prompt)]


def _kind(text: Text) -> str:
    return "word" if text.separator else "character"

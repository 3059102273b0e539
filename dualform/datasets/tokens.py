"""Tokenise texts: into characters or into words.

    train, test = words(corpus)             # two `Text`s of one vocabulary, that of the training text
    encode_prompt("the Lamb a little", train)

Tokens that only the test text has become the unknown token. Prose is split into words and punctuation marks;
in WikiText all tokens are separated by spaces already, and each line end is a token.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dualform.datasets.corpus import Corpus
from dualform.errors import QueryError, listing
from dualform.text import Text

UNKNOWN_CHARACTER = "\ufffd"
UNKNOWN_WORD = "<unk>"
LINE_END = "<eos>"

# Words may contain hyphens and apostrophes; a punctuation mark that repeats is one token: an ellipsis, an underline.
_WORD = r"\w+(?:[-'’]\w+)*|([^\w\s])\1*"
_PROSE = re.compile(_WORD)
# Prose is never split into these names, which are marks and a word, so that in a prompt they always mean the tokens.
_PROMPT = re.compile(f"(?:{UNKNOWN_WORD}|{LINE_END})|{_WORD}")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id and ids by token."""

    tokens: tuple[str, ...]
    unknown: str  # the token that stands for all others

    @cached_property
    def number(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Return the ids of tokens, (tokens,)."""
        number = self.number
        unknown = number[self.unknown]
        return np.fromiter((number.get(token, unknown) for token in tokens), np.int64, len(tokens))


def characters(corpus: Corpus) -> tuple[Text, Text]:
    """Split a corpus into characters. Returns the training and the test text."""
    vocabulary = Vocabulary(tuple(sorted({*corpus.train.text, UNKNOWN_CHARACTER})), UNKNOWN_CHARACTER)
    train, test = (
        Text(vocabulary.encode(part.text), vocabulary.tokens, separator="", titles=part.titles)
        for part in (corpus.train, corpus.test)
    )
    return train, test


def words(corpus: Corpus) -> tuple[Text, Text]:
    """Split a corpus into words; the most frequent have the lowest ids. Returns the training and the test text."""
    parts = []
    for part in (corpus.train, corpus.test):
        starts = [start for start, _ in part.titles]
        tokens: list[str] = []
        positions = []
        # Piece by piece: the number of words so far is the position of the next title.
        for start, end in zip([0, *starts], [*starts, len(part.text)], strict=True):
            positions.append(len(tokens))
            piece = part.text[start:end]
            if corpus.words == "wikitext":
                tokens += piece.replace("\n", f" {LINE_END} ").split()
            else:
                tokens += [word[0] for word in _PROSE.finditer(piece)]
        titles = zip(positions[1:], (title for _, title in part.titles), strict=True)
        parts.append((tokens, tuple(titles)))
    counts = Counter(parts[0][0])
    counts[UNKNOWN_WORD] += 0
    vocabulary = Vocabulary(tuple(sorted(counts, key=lambda word: (-counts[word], word))), UNKNOWN_WORD)
    train, test = (
        Text(vocabulary.encode(tokens), vocabulary.tokens, separator=" ", titles=titles) for tokens, titles in parts
    )
    return train, test


def encode_prompt(prompt: str, text: Text) -> NDArray[np.int64]:
    """Return the ids of a prompt's tokens, which the training text has to contain.

    Args:
        prompt: in characters or words, as the text is.
        text: the training text.

    Returns:
        Array of shape (tokens,).
    """
    tokens = _prompt_tokens(prompt, text)
    kind = _kind(text)
    if not tokens:
        raise QueryError(f"the prompt holds no {kind}s; pass some that the model was trained on")
    number = {token: number for number, token in enumerate(text.vocabulary)}
    if unknown := [token for token in dict.fromkeys(tokens) if token not in number]:
        hint = f"; {UNKNOWN_WORD} stands for any word it does not know" if UNKNOWN_WORD in number else ""
        raise QueryError(f"the training text has no {kind} {listing(unknown)}{hint}")
    if len(tokens) > len(text):
        raise QueryError(f"the prompt has {len(tokens):,} {kind}s, more than the {len(text):,} of the training text")
    return np.array([number[token] for token in tokens], np.int64)


def replace_unknown(prompt: str, text: Text) -> str:
    """Replace words that the training text does not have by the unknown word; characters stay."""
    if _kind(text) == "character":
        return prompt
    known = set(text.vocabulary)
    return " ".join(token if token in known else UNKNOWN_WORD for token in _prompt_tokens(prompt, text))


def _prompt_tokens(prompt: str, text: Text) -> list[str]:
    if _kind(text) == "character":
        return list(prompt)
    if LINE_END in text.vocabulary:  # which prose never has
        return prompt.split()
    return [token[0] for token in _PROMPT.finditer(prompt)]


def _kind(text: Text) -> str:
    return "word" if text.separator else "character"

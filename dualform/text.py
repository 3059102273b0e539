"""Slots back to passages: a training text as positions, and what stands around them.

    text = Text(ids, vocabulary=("a", "b", " "), separator="", titles=((0, "THE WOLF AND THE LAMB"),))
    text.ids[16]                 # the token at position 16, as a number of the vocabulary
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Text:
    """A text in tokens; a token's place in it is its position."""

    ids: NDArray[np.int64]  # (positions,)
    vocabulary: tuple[str, ...]  # the token of each id
    separator: str  # between tokens when they are shown: "" for characters, " " for words
    titles: tuple[tuple[int, str], ...] = ()  # the first position of each titled part, ascending, and its title

    def __len__(self) -> int:
        return len(self.ids)

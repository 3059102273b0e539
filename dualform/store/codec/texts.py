"""Store the texts of a tag once each: their bytes one after the other, and where each of them ends.

    texts = Texts()
    codes = texts.encode(column)            # (slots,): the number of each slot's text
    texts.columns("task")                   # the bytes and the ends, as two tensors
    decoded(content, ends)                  # the texts again, by number

A header is parsed as a whole and may not be large, so texts, of which there may be millions, are tensors.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.store.schema import text_ends_tensor, text_tensor
from dualform.store.shard_file import Column

Array = NDArray[Any]


class Texts:
    """The texts of one tag in one shard, numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._encoded: dict[int, tuple[Array, Array]] = {}  # most layers have the very same column

    def encode(self, column: Array) -> NDArray[np.int64]:
        """Return the number of each text; 0 where a masked column has none."""
        if id(column) not in self._encoded:
            self._encoded[id(column)] = column, self._encode(column)
        return self._encoded[id(column)][1]

    def _encode(self, column: Array) -> NDArray[np.int64]:
        present, numbers = ~np.ma.getmaskarray(column), self._numbers
        codes = np.zeros(len(column), dtype=np.int64)
        codes[present] = [numbers.setdefault(text, len(numbers)) for text in np.ma.getdata(column)[present].tolist()]
        return codes

    def columns(self, tag: str) -> dict[str, Column]:
        """Return the bytes of all texts, and where each ends."""
        encoded = [text.encode() for text in self._numbers]
        content = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return {text_tensor(tag): Column([content]), text_ends_tensor(tag): Column([ends])}


def decoded(content: Array, ends: Iterable[int]) -> list[str]:
    """Return the texts by number; raise a ValueError if the ends do not fit, or bytes are no text."""
    whole, start, texts = content.tobytes(), 0, []
    for end in ends:
        if not start <= end <= len(whole):
            raise ValueError(f"a text cannot end at byte {end:,}")
        texts.append(whole[start:end].decode())
        start = end
    if start != len(whole):
        raise ValueError("there are bytes after the last text")
    return texts

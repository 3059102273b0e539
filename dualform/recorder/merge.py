"""Sum up keys as they come: one row for each value of a tag, instead of one for each slot.

Attention is linear, so the attention summed over all visits to a training position is (sum of its keys) . q,
however many visits there were. That is all a merged memory can say; single visits and values are not kept.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import RecordingError
from dualform.recorder.captures import Capture
from dualform.recorder.records import UsedPass
from dualform.store import Layer, Rows
from dualform.store.codec.float16 import TORCH, pack

Array = NDArray[Any]


class TaggedKeys(NamedTuple):
    """Keys of a layer, and the value of the tag for each."""

    layer: str
    keys: Tensor
    tag: Array


def tagged_keys(passes: Iterable[UsedPass], tag: str) -> list[TaggedKeys]:
    """Return the keys that a step adds to the sums; raises for a layer that has rows without the tag."""
    tagged = [
        TaggedKeys(used.layer, capture.keys.rows, columns[tag])
        for used in passes
        for capture, columns in zip(used.captures, used.columns, strict=True)
        if isinstance(capture, Capture)
    ]
    for layer, _, column in tagged:
        if np.ma.is_masked(column):
            raise RecordingError(
                f"layer {layer!r} has rows without a tag {tag!r}, by which slots are merged: they belong to no single "
                "entry of it. Leave the layer out with exclude=..."
            )
    return tagged


class Merger:
    """The sums of all layers."""

    def __init__(self, layers: Iterable[Layer], tag: str, dtype: str) -> None:
        self._tag, self._dtype = tag, dtype
        self._sums = {layer.name: KeySums(layer.d_in) for layer in layers}

    def add(self, tagged: Iterable[TaggedKeys]) -> None:
        for layer, keys, tag in tagged:
            self._sums[layer].add(keys, tag)

    def take(self) -> dict[str, Rows]:
        """Return all sums as the store takes them, and start anew."""
        return {layer: sums.take(self._tag, self._dtype) for layer, sums in self._sums.items() if len(sums)}


class KeySums:
    """The sums of one layer since the last `take`."""

    def __init__(self, d_in: int) -> None:
        self._d_in = d_in
        self._row: dict[Any, int] = {}  # of each value of the tag
        self._sums = torch.zeros(0, d_in)
        self._visits = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._row)

    def add(self, keys: Tensor, tag: Array) -> None:
        """Add keys (slots, d_in), given the tag's value for each."""
        rows = np.array([self._row.setdefault(value, len(self._row)) for value in tag.tolist()], dtype=np.int64)
        missing = len(self._row) - len(self._sums)
        if missing > 0:
            # By halves, so that growing copies every row a few times only.
            more = max(missing, len(self._sums) // 2)
            dtype = torch.float64 if keys.dtype == torch.float64 else torch.float32
            self._sums = torch.cat([self._sums.to(dtype), torch.zeros(more, self._d_in, dtype=dtype)])
            self._visits = np.concatenate([self._visits, np.zeros(more, dtype=np.int64)])
        self._sums.index_add_(0, torch.from_numpy(rows), keys.to(self._sums.dtype))
        np.add.at(self._visits, rows, 1)

    def take(self, tag: str, dtype: str) -> Rows:
        """Return the sums as rows, in order of the tag, and start anew."""
        values = np.array(list(self._row))
        order = np.argsort(values, kind="stable")
        sums = self._sums[torch.from_numpy(order)]
        keys, exponent = pack(sums, torch.empty(sums.shape, dtype=TORCH[dtype]))
        visits = self._visits[order]
        self._row, self._sums, self._visits = {}, torch.zeros(0, self._d_in), np.zeros(0, dtype=np.int64)
        return Rows(
            keys=keys.numpy(), key_exponent=exponent, values=None, value_exponent=None, factors=np.zeros(0),
            tags={tag: values[order]}, may_repeat=False, visits=visits,
        )  # fmt: skip

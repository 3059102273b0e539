"""What went through each recorded layer: keys with their errors, call by call, backward pass by backward pass.

A forward pass that is never followed back leaves nothing behind. Both are packed for storage at once, while
they are in the processor's cache and before a batch buffer is filled anew; the tensors themselves are let go.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dualform.kinds import OnErrors, Probe
from dualform.recorder.layers import Recorded
from dualform.recorder.tags import Tags, joined
from dualform.store import Rows, Storage
from dualform.store.codec.float16 import unpack

Array = NDArray[np.float64]


# Named tuples, because dozens of them are made in every step, and frozen dataclasses are slow to make.


class Packed(NamedTuple):
    """Rows in the stored precision, with the exponent of each for float16."""

    rows: Tensor
    exponent: NDArray[np.int16] | None

    def unpacked(self) -> Tensor:
        if not self.rows.is_floating_point():
            return self.rows  # keys that are indices
        dtype = torch.float64 if self.rows.dtype == torch.float64 else torch.float32
        return unpack(self.rows, self.exponent, dtype)


Pack = Callable[[Tensor], Packed]


class Capture(NamedTuple):
    """One call of a layer that was followed back."""

    order: int  # of the forward call
    backward: int  # number of the backward pass
    keys: Packed
    values: Packed
    product: Tensor  # (X r)^T E, before packing
    precision: torch.dtype  # of the gradient
    tags: Tags  # whether they fit matters only if the pass was in a gradient
    leading: tuple[int, ...]  # dimensions of the keys before the last: what tags are spread over
    may_repeat: bool  # the key does not depend on anything trained: it may be seen again


class Pass(NamedTuple):
    """All calls of a layer in one backward pass, in the order they were made."""

    captures: Sequence[Capture]

    @property
    def product(self) -> Tensor:
        first, *others = (capture.product for capture in self.captures)
        return sum(others, start=first)


def as_rows(one: Pass, layer: str, factors: Array, storage: Storage) -> Rows:
    """A pass as the store takes it."""
    keys, key_exponent = _arrays([capture.keys for capture in one.captures])
    values, value_exponent = _arrays([c.values for c in one.captures]) if storage.values else (None, None)
    return Rows(
        keys=keys,
        key_exponent=key_exponent,
        values=values,
        value_exponent=value_exponent,
        factors=factors,
        tags=joined([capture.tags.over(capture.leading, layer) for capture in one.captures]),
        may_repeat=all(capture.may_repeat for capture in one.captures),
    )


def _arrays(packed: Sequence[Packed]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if len(packed) == 1:
        return packed[0].rows.numpy(), packed[0].exponent
    exponents = [p.exponent for p in packed if p.exponent is not None]
    return torch.cat([p.rows for p in packed]).numpy(), np.concatenate(exponents) if exponents else None


class Captures:
    """Collects captures while its hooks are on; `take` hands a layer's passes over."""

    def __init__(
        self,
        recorded: Sequence[Recorded],
        probes: Sequence[Probe],
        tags: Callable[[], Tags],
        packer: Callable[[Recorded, bool], Pack],
    ) -> None:
        self._tags, self._packer = tags, packer
        self._order = count()
        self._waiting: dict[str, list[Capture]] = defaultdict(list)
        self._open = True
        self._handles: list[RemovableHandle] = [
            entry.kind.watch(entry.module, entry.layer, self._on_keys(entry, probe), lasting=True)
            for entry, probe in zip(recorded, probes, strict=True)
        ]

    def take(self, layer: str) -> dict[int, Pass]:
        """The backward passes through a layer since the last call, by number, in order."""
        captures = self._waiting.pop(layer, [])
        if len(captures) == 1:  # as nearly always
            return {captures[0].backward: Pass(captures)}
        passes: dict[int, list[Capture]] = defaultdict(list)
        for capture in sorted(captures, key=attrgetter("backward", "order")):
            passes[capture.backward].append(capture)
        return {number: Pass(of_one) for number, of_one in passes.items()}

    @property
    def waiting(self) -> bool:
        """Whether there are passes that no step has taken yet."""
        return any(self._waiting.values())

    def close(self) -> None:
        self._open = False
        self._waiting.clear()
        for handle in self._handles:
            handle.remove()

    def _on_keys(self, entry: Recorded, probe: Probe) -> Callable[[Tensor, torch.dtype, bool], OnErrors | None]:
        kind, module, name = entry.kind, entry.module, entry.layer.name
        pack_keys, pack_values = (self._packer(entry, values) for values in (False, True))

        def on_keys(given: Tensor, precision: torch.dtype, followed: bool) -> OnErrors | None:
            if not (self._open and followed):
                return None
            tags, order = self._tags(), next(self._order)

            def on_errors(gradient: Tensor) -> None:
                if not self._open:
                    return
                keys = kind.rows(given, precision)
                values = kind.errors(module, keys, gradient)
                capture = Capture(
                    order=order,
                    backward=torch._C._current_graph_task_id(),
                    product=probe.of_rows(keys, values),
                    keys=pack_keys(keys),
                    values=pack_values(values),
                    precision=gradient.dtype,
                    tags=tags,
                    leading=kind.leading(given),
                    may_repeat=kind.may_repeat(given),
                )
                self._waiting[name].append(capture)

            return on_errors

        return on_keys

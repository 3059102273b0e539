"""Hooks: each recorded layer's input on the way forward, its output's gradient on the way back.

Key and value are paired by a closure on the output tensor itself, so in-place activations, repeated
calls and checkpointing all pair up; a forward pass that is never followed back leaves nothing behind.
Both are packed for storage at once, while they are in the processor's cache and before a batch buffer
is filled anew; the tensors themselves are let go.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.recorder.layers import Recorded
from dualform.recorder.probe import Probe
from dualform.recorder.tags import Tags, joined
from dualform.store import Rows, Storage
from dualform.store.packing import unpack

Array = NDArray[np.float64]


# Named tuples, because dozens of them are made in every step, and frozen dataclasses are slow to make.


class Packed(NamedTuple):
    """Rows in the stored precision, with the exponent of each for float16."""

    rows: Tensor
    exponent: NDArray[np.int16] | None

    def unpacked(self) -> Tensor:
        dtype = torch.float64 if self.rows.dtype == torch.float64 else torch.float32
        return unpack(self.rows, self.exponent, dtype)


class Capture(NamedTuple):
    """One call of a layer that was followed back."""

    order: int  # of the forward call
    backward: int  # number of the backward pass
    keys: Packed
    values: Packed
    product: Tensor  # (X r)^T E, before packing
    precision: torch.dtype  # of the gradient
    tags: Tags  # whether they fit matters only if the pass was in a gradient
    leading: tuple[int, ...]  # dimensions of the input before the last: what tags are spread over
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
    rows = torch.cat([p.rows for p in packed]) if len(packed) > 1 else packed[0].rows
    exponents = [p.exponent for p in packed if p.exponent is not None]
    if len(exponents) < 2:
        return rows.numpy(), exponents[0] if exponents else None
    return rows.numpy(), np.concatenate(exponents)


class Captures:
    """Collects captures while its hooks are on; `take` hands a layer's passes over."""

    def __init__(
        self,
        recorded: Sequence[Recorded],
        probes: Sequence[Probe],
        tags: Callable[[], Tags],
        pack: Callable[[Tensor, str], Packed],
    ) -> None:
        self._tags, self._pack = tags, pack
        self._order = count()
        self._waiting: dict[str, list[Capture]] = defaultdict(list)
        self._open = True
        self._handles: list[RemovableHandle] = [
            entry.module.register_forward_hook(self._hook(entry.layer.name, probe), with_kwargs=True)
            for entry, probe in zip(recorded, probes, strict=True)
        ]

    def take(self, layer: str) -> dict[int, Pass]:
        """The backward passes through a layer since the last call, by number, in order."""
        passes: dict[int, list[Capture]] = defaultdict(list)
        for capture in sorted(self._waiting.pop(layer, ()), key=lambda c: (c.backward, c.order)):
            passes[capture.backward].append(capture)
        return {number: Pass(captures) for number, captures in passes.items()}

    @property
    def waiting(self) -> bool:
        """Whether there are passes that no step has taken yet."""
        return any(self._waiting.values())

    def close(self) -> None:
        self._open = False
        self._waiting.clear()
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer: str, probe: Probe) -> Callable[..., None]:
        key_column, value_column = f"{layer}/keys", f"{layer}/values"

        def on_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            if not (self._open and output.requires_grad and output.numel()):
                return
            given: Tensor = args[0] if args else kwargs["input"]
            tags, order, precision = self._tags(), next(self._order), output.dtype

            def on_backward(gradient: Tensor) -> None:
                if not self._open:
                    return
                # autocast computes the product, and so the gradient, in the output's precision
                keys, values = _rows(given, precision), _rows(gradient, gradient.dtype)
                capture = Capture(
                    order=order,
                    backward=torch._C._current_graph_task_id(),
                    product=probe.of_rows(keys, values),
                    keys=self._pack(keys, key_column),
                    values=self._pack(values, value_column),
                    precision=gradient.dtype,
                    tags=tags,
                    leading=tuple(given.shape[:-1]),
                    may_repeat=not given.requires_grad,
                )
                self._waiting[layer].append(capture)

            output.register_hook(on_backward)

        # A compiled model runs the hook as plain Python between two graphs.
        disabled: Callable[..., None] = torch.compiler.disable(on_forward)
        return disabled


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """(slots, width), however many leading dimensions there are."""
    rows = tensor.detach()
    if rows.dim() != 2:
        rows = rows.reshape(-1, rows.shape[-1])
    return rows if rows.dtype == dtype else rows.to(dtype)

"""Hooks: each recorded layer's input on the way forward, its output's gradient on the way back.

Key and value are paired by a closure on the output tensor itself, so in-place activations, repeated
calls and checkpointing all pair up; a forward pass that is never followed back leaves nothing behind.
Both are packed for storage at once, while they are in the processor's cache and before a batch buffer
is filled anew; the tensors themselves are let go.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

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


@dataclass(frozen=True)
class Packed:
    """Rows in the stored precision, with the exponent of each for float16."""

    rows: Tensor
    exponent: Tensor | None

    def unpacked(self) -> Tensor:
        dtype = torch.float64 if self.rows.dtype == torch.float64 else torch.float32
        return unpack(self.rows, self.exponent, dtype)


@dataclass(frozen=True)
class Capture:
    """One call of a layer that was followed back."""

    order: int  # of the forward call
    backward: int  # number of the backward pass
    keys: Packed
    values: Packed
    product: Array  # (X r)^T E, before packing
    precision: torch.dtype  # of the gradient
    tags: Tags  # whether they fit matters only if the pass was in a gradient
    leading: tuple[int, ...]  # dimensions of the input before the last: what tags are spread over
    may_repeat: bool  # the key does not depend on anything trained: it may be seen again


@dataclass(frozen=True)
class Pass:
    """All calls of a layer in one backward pass, in the order they were made."""

    captures: Sequence[Capture]

    @property
    def product(self) -> Array:
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
    return rows.cpu().numpy(), torch.cat(exponents).cpu().numpy() if exponents else None


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
        def on_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            if not (self._open and output.requires_grad and output.numel()):
                return
            given: Tensor = args[0] if args else kwargs["input"]
            tags = self._tags()
            order, may_repeat = next(self._order), not given.requires_grad
            # autocast computes the product, and so the gradient, in the output's precision
            keys = given.detach().reshape(-1, given.shape[-1]).to(output.dtype)  # (slots, d_in)

            def on_backward(gradient: Tensor) -> None:
                if self._open:
                    values = gradient.detach().reshape(-1, gradient.shape[-1])  # (slots, d_out)
                    capture = Capture(
                        order=order,
                        backward=torch._C._current_graph_task_id(),
                        keys=self._pack(keys, f"{layer}/keys"),
                        values=self._pack(values, f"{layer}/values"),
                        product=probe.of_rows(keys, values),
                        precision=gradient.dtype,
                        tags=tags,
                        leading=tuple(given.shape[:-1]),
                        may_repeat=may_repeat,
                    )
                    self._waiting[layer].append(capture)

            output.register_hook(on_backward)

        # A compiled model runs the hook as plain Python between two graphs.
        disabled: Callable[..., None] = torch.compiler.disable(on_forward)
        return disabled

"""Capture what goes through each recorded layer: keys with their errors, call by call, pass by pass.

A forward pass that is never followed back leaves nothing behind. Both are packed for storage at once, while
they are in the processor's cache and before a batch buffer is filled anew; the tensors themselves are let go.

Packed rows go to memory that is used over and over. Fresh memory is slow: the system hands it out page by page, zeroed.
A run needs a megabyte a step, keeps it for a chapter, and then needs it no more; so the blocks of a written chapter
serve the next but one.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dualform.kinds import ModuleCall, OnErrors, OnKeys
from dualform.recorder.layers import RecordedLayer
from dualform.recorder.provenance.calls import Call
from dualform.recorder.provenance.follow import Provenance
from dualform.store import Storage
from dualform.store.codec.float16 import TORCH, pack, unpack

_BLOCK_BYTES = 8 << 20
_PIECES = 16  # cut at once
# Passes wait for a step. One that comes after more than so many is not to be expected,
_MAX_PASSES = 1024
_MAX_WAITING_BYTES, _MIN_PASSES = 512 << 20, 64  # nor after so many bytes, unless they are of few passes


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


class Capture(NamedTuple):
    """One call of a layer that was followed back."""

    order: int  # of the forward call
    backward: int  # number of the backward pass
    keys: Packed
    values: Packed
    product: Tensor  # (X r)^T E, before packing
    precision: torch.dtype  # of the gradient
    call: Call  # of the module: what is known of tags, which matter only if the pass was in a gradient
    number: int  # of the layer's calls within it
    leading: tuple[int, ...]  # dimensions of the keys before the last
    may_repeat: bool  # the key does not depend on anything trained: it may come again
    extents: tuple[int, ...]  # of the maps that keys are patches of, if they are

    @property
    def slots(self) -> int:
        return len(self.values.rows)

    @property
    def nbytes(self) -> int:
        return self.keys.rows.nbytes + self.values.rows.nbytes

    def unpacked(self, layer: RecordedLayer) -> tuple[Tensor, Tensor]:
        """Return keys and values, a row for each slot."""
        keys = layer.kind.unfold(layer.description, self.keys.unpacked(), self.extents)
        return keys, self.values.unpacked()


class Unstored(NamedTuple):
    """One call of a layer that was followed back, of which nothing is kept but how many rows it had."""

    order: int
    backward: int
    precision: torch.dtype
    call: Call
    number: int
    leading: tuple[int, ...]
    extents: tuple[int, ...]
    slots: int
    nbytes: int  # that keys and values would take


class Told(NamedTuple):
    """What another process of the training tells of a call that was followed back there, where its rows stay."""

    product: Tensor
    slots: int
    precision: torch.dtype
    nbytes: int = 0  # here


class Pass(NamedTuple):
    """All calls of a layer in one backward pass, in the order they were made."""

    captures: Sequence[Capture | Told]
    accumulated: bool  # into `.grad`, and not only looked at, as torch.autograd.grad does

    @property
    def product(self) -> Tensor:
        first, *others = (capture.product for capture in self.captures)
        return sum(others, start=first)


class UnstoredPass(NamedTuple):
    """The same of a layer whose slots a recipe makes again."""

    captures: Sequence[Unstored]
    accumulated: bool


class Captures:
    """Collects captures while its hooks are on; `take` hands a layer's passes over."""

    def __init__(
        self,
        layers: Sequence[RecordedLayer],
        storage: Storage,
        arena: "Arena",
        provenance: Provenance,
        on_drop: Callable[[Sequence[str], int], None],
    ) -> None:
        self._storage, self._arena, self._provenance, self._on_drop = storage, arena, provenance, on_drop
        self._order = count()
        self._waiting: dict[str, list[Capture]] = defaultdict(list)
        self._unstored: dict[str, list[Unstored]] = defaultdict(list)
        self._passes: Counter[str] = Counter()  # that wait, by layer
        self._accumulated: dict[str, set[int]] = defaultdict(set)  # numbers of passes, by layer
        self._dropped = 0
        self._buffers: dict[tuple[str, bool], RowBuffer] = {}  # by layer: of keys, and of values
        self._handles: dict[str, RemovableHandle] = {}  # by layer, while it is recorded
        self._gradient_handles: dict[str, RemovableHandle] = {}
        try:
            for layer in layers:
                add_hooks, on_keys = layer.kind.add_hooks, self._on_keys(layer)
                self._handles[layer.name] = add_hooks(layer.module, layer.description, on_keys, lasting=True)
                weight = layer.module._parameters[layer.own_names[0]]
                assert weight is not None
                on_gradient = self._on_gradient(layer.name)
                self._gradient_handles[layer.name] = weight.register_post_accumulate_grad_hook(on_gradient)
        except BaseException:  # a module may refuse hooks
            self.close()
            raise

    def take(self, layer: str) -> dict[int, Pass]:
        """Return the backward passes through a layer since the last call, by number, in order."""
        captures = self._waiting.pop(layer, [])
        self._passes.pop(layer, None)
        accumulated = self._accumulated.pop(layer, ())
        if len(captures) == 1:  # as nearly always
            return {captures[0].backward: Pass(captures, captures[0].backward in accumulated)}
        passes: dict[int, list[Capture]] = defaultdict(list)
        for capture in sorted(captures, key=attrgetter("backward", "order")):
            passes[capture.backward].append(capture)
        return {number: Pass(of_pass, number in accumulated) for number, of_pass in passes.items()}

    def take_unstored(self, layer: str) -> dict[int, UnstoredPass]:
        """Return the same of a layer whose slots are not stored."""
        passes: dict[int, list[Unstored]] = defaultdict(list)
        for capture in sorted(self._unstored.pop(layer, ()), key=attrgetter("backward", "order")):
            passes[capture.backward].append(capture)
        accumulated = self._accumulated.pop(layer, ())
        return {number: UnstoredPass(of_pass, number in accumulated) for number, of_pass in passes.items()}

    @property
    def waiting(self) -> bool:
        """Whether there are passes that no step has taken yet."""
        return any(self._waiting.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all rows that wait."""
        unstored = (capture.nbytes for captures in self._unstored.values() for capture in captures)
        return sum(capture.nbytes for captures in self._waiting.values() for capture in captures) + sum(unstored)

    @property
    def passes(self) -> int:
        """How many passes no step has taken, through the layer with most of them; dropped ones count."""
        return self._dropped + max(self._passes.values(), default=0)

    def _add(self, layer: str, capture: Capture) -> None:
        waiting = self._waiting[layer]
        new_pass = not waiting or waiting[-1].backward != capture.backward
        waiting.append(capture)
        if not new_pass:
            return
        self._passes[layer] += 1
        passes = self._passes[layer]
        if passes > _MAX_PASSES or (passes % _MIN_PASSES == 0 and self.nbytes > _MAX_WAITING_BYTES):
            self._let_go(passes)

    def _let_go(self, passes: int) -> None:
        """Let go of passes that have waited for long: the optimiser of their layers is not stepped."""
        idle = [layer for layer, number in self._passes.items() if number >= _MIN_PASSES]
        for layer in idle:
            self.take(layer)
        self._dropped += passes
        self._arena.hand_over()  # to nobody: what others do not need is freed
        self._on_drop(idle, passes)

    def expect(self, layer: str, keys: int, values: int) -> None:
        """Make room for so many rows in one piece, where it is known how many will come until they are taken over."""
        for of_values, rows in ((False, keys), (True, values)):
            if (layer, of_values) in self._buffers:
                self._buffers[layer, of_values].reserve(rows)

    def drop(self, layer: str) -> None:
        """Take the hook off a layer, and forget what waits. Passes that are still to be followed back are ignored."""
        if layer in self._handles:
            self._handles.pop(layer).remove()
        if layer in self._gradient_handles:
            self._gradient_handles.pop(layer).remove()
        self._waiting.pop(layer, None)
        self._unstored.pop(layer, None)

    def close(self) -> None:
        for layer in [*self._handles]:
            self.drop(layer)

    def _on_gradient(self, layer: str) -> Callable[[Tensor], None]:
        """Return a hook that notes which passes are added to the gradient of a layer's weight."""
        return lambda _: self._accumulated[layer].add(torch._C._current_graph_task_id())

    def _on_keys(self, layer: RecordedLayer) -> OnKeys:
        kind, name, probe, recorded = layer.kind, layer.name, layer.probe, self._handles
        pack_keys, pack_values = (self._packer(layer, values) for values in (False, True))

        def on_keys(of_module: ModuleCall) -> OnErrors | None:
            if name not in recorded:
                return None
            leading = kind.leading(of_module)
            place = self._provenance.place(name, lambda: kind.told_apart_by(of_module), leading)
            if place is None:
                return None
            (call, number), order = place, next(self._order)

            def on_errors(gradient: Tensor) -> None:
                if name not in recorded:
                    return
                call.followed = True
                if not layer.description.stored:
                    self._unstored[name].append(self._uncaptured(layer, of_module, gradient, call, number, order))
                    return
                keys, values = kind.rows(of_module), kind.errors(of_module, gradient)
                capture = Capture(
                    order=order,
                    backward=torch._C._current_graph_task_id(),
                    product=probe.of_call(of_module, keys, values),
                    keys=pack_keys(keys),
                    values=pack_values(values),
                    precision=gradient.dtype,
                    call=call,
                    number=number,
                    leading=leading,
                    may_repeat=kind.may_repeat and not of_module.inputs.requires_grad,
                    extents=kind.extents(of_module),
                )
                self._add(name, capture)

            return on_errors

        return on_keys

    def _uncaptured(
        self, layer: RecordedLayer, of_module: ModuleCall, gradient: Tensor, call: Call, number: int, order: int
    ) -> Unstored:
        """Return what is kept of a call whose keys and values a recipe makes again."""
        kind, slots = layer.kind, len(layer.kind.errors(of_module, gradient))
        return Unstored(
            order,
            torch._C._current_graph_task_id(),
            gradient.dtype,
            call,
            number,
            kind.leading(of_module),
            kind.extents(of_module),
            slots,
            slots * self._storage.slot_nbytes(layer.description),
        )

    def _packer(self, layer: RecordedLayer, values: bool) -> Callable[[Tensor], Packed]:
        """Return what packs the keys or the values of a layer."""
        if self._storage.merge or (values and not self._storage.values):
            return lambda rows: Packed(rows.cpu().clone(), None)  # needed until the step only, and then let go
        dtype, described = TORCH[self._storage.dtype], layer.description
        if values:
            buffer = self._arena.buffer(described.d_out, dtype)
        else:
            buffer = self._arena.buffer(described.keys.width, layer.kind.key_dtype(dtype))
        self._buffers[layer.name, values] = buffer
        return lambda rows: Packed(*pack(rows, buffer.empty(len(rows)), alike=not values))


class Arena:
    """Memory for packed rows: `buffer` makes a column, `hand_over` starts afresh and returns how to give blocks back.

    Each column of the store (a layer's keys, say) has blocks of its own, in which the rows of one step follow those of
    the step before: the writer then has few large pieces to go through, not one for each step.
    """

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque()  # filled by the writer's thread, emptied by the training's
        self._used: list[Tensor] = []
        self._buffers: list[RowBuffer] = []

    def buffer(self, width: int, dtype: torch.dtype) -> "RowBuffer":
        """Make a buffer for rows of so many numbers."""
        buffer = RowBuffer(self._block, width, dtype)
        self._buffers.append(buffer)
        return buffer

    def _block(self, size: int) -> Tensor:
        reused = size <= _BLOCK_BYTES and self._free
        block = self._free.popleft() if reused else torch.empty(max(size, _BLOCK_BYTES), dtype=torch.uint8)
        self._used.append(block)
        return block

    def hand_over(self) -> Callable[[], None]:
        """Leave what was carved so far to the writer, who calls the result when it is on the disk."""
        blocks = [block for block in self._used if len(block) == _BLOCK_BYTES]  # outsize ones are not kept
        self._used = []
        for buffer in self._buffers:
            buffer.leave()
        return lambda: self._free.extend(blocks)


class RowBuffer:
    """Carves the rows of one column out of blocks.

    Several pieces are cut at once, of as many rows as are asked for, since batches mostly are of one size: to cut them
    one by one, in the midst of a training, takes several times as long.
    """

    def __init__(self, block: Callable[[int], Tensor], width: int, dtype: torch.dtype) -> None:
        self._new_block, self._width, self._dtype = block, width, dtype
        self._row_bytes = width * dtype.itemsize
        self._block = torch.empty(0, width, dtype=dtype)
        self._start = 0  # rows of it that are in use
        self._pieces: list[Tensor] = []  # behind them, the first one last

    def reserve(self, rows: int) -> None:
        """Begin a block of just so many rows, which nobody gives back."""
        self._block, self._start = torch.empty(rows, self._width, dtype=self._dtype), 0
        self._pieces = []

    def leave(self) -> None:
        """Carve no more out of the block that is in use."""
        self._block, self._start, self._pieces = torch.empty(0, self._width, dtype=self._dtype), 0, []

    def empty(self, rows: int) -> Tensor:
        """Return uninitialised rows on the CPU, right behind the last ones if there is space."""
        if not self._pieces or len(self._pieces[-1]) != rows:
            if self._start + rows > len(self._block):
                whole = self._new_block(rows * self._row_bytes)
                end = len(whole) // self._row_bytes
                self._block, self._start = whole[: end * self._row_bytes].view(self._dtype).view(-1, self._width), 0
            pieces = min((len(self._block) - self._start) // rows, _PIECES)
            self._pieces = [*self._block.narrow(0, self._start, pieces * rows).split(rows)][::-1]
        self._start += rows
        return self._pieces.pop()

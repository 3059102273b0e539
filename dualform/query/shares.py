"""What each group of slots has added to a layer's parameters, all groups in one reading.

    W_g = sum over the slots t of group g of c_t e_t x_t^T        W = initial use + sum_g W_g

A product of few slots takes nearly as long as one of many. So values are read a block at a time and collected by
group and key, in which visits to the same key become one row, before keys are read: group by group, in large pieces.
Under an optimiser that divides elementwise a step is a stretch of its own, for all of it shares one coefficient R_t.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.algebra import Adjoint
from dualform.errors import QueryError, listing
from dualform.kinds import Keys, kind_of
from dualform.query.coefficients import Ledger, rule_of
from dualform.query.groups import By, ByTags, size
from dualform.query.rebuild import Coefficients, LongSum, initial_of, initial_part, weighted_values
from dualform.query.replay import Move, Replay
from dualform.query.scan import Block, Slots
from dualform.query.selection import Selection
from dualform.store import Layer, Run, Use
from dualform.store.schema import state_tensor

Array = NDArray[Any]

_MOST_ROWS = 1 << 16  # rows of values that are collected before keys are read
_MOST_BYTES = 1 << 28  # and what these may take
_MOST_VISITS = 64  # summed up in a row before sums go on in float64
_PIECE_NUMBERS = 1 << 21  # keys and values of one product: 8 MB in float32
_SUM_BYTES = 12  # of a sum while it is made: in float64, and under some optimisers in float32 besides


@dataclass(frozen=True)
class Share:
    """A parameter as a map (d_out, width), and what each group has added to it."""

    whole: Tensor  # as the view has it, in float64
    groups: Tensor  # (groups, d_out, width); in its own precision, at least float32

    def added(self, groups: Sequence[int]) -> Tensor:
        """What these groups have added together, in float64."""
        total = torch.zeros_like(self.whole)
        for group in groups:
            total += self.groups[group]
        return total

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes + self.groups.nbytes


def groups_of(run: Run, by: By) -> ByTags:
    """The groups of all layers, numbered alike for each."""
    if not by:
        raise QueryError("to group slots takes at least one tag: by='label'")
    used = [layer for layer in run.layers.values() if run.slots(layer.name)]
    found = [ByTags.of(run, layer, by) for layer in used or list(run.layers.values())[:1]]
    if len(found) == 1:
        return found[0]
    columns = [grouping.columns for grouping in found]
    categories = {name: np.unique(np.concatenate([one[name] for one in columns])) for name in columns[0]}
    shape = tuple(len(known) for known in categories.values())
    places = [tuple(np.searchsorted(categories[name], one[name]) for name in categories) for one in columns]
    return ByTags(categories, np.unique(np.concatenate([np.ravel_multi_index(place, shape) for place in places])))


def check_room(run: Run, grouping: ByTags, most_bytes: int) -> None:
    """Raise before any slot is read if all shares, with the sums of the layer at hand, would take more than this."""
    groups = size(grouping)
    layers = [{use: prod(use.parameter.shape) for use in layer.trained} for layer in run.layers.values()]
    kept = sum(count * (8 + groups * _kept(run, use).itemsize) for layer in layers for use, count in layer.items())
    needed = kept + groups * _SUM_BYTES * max((sum(layer.values()) for layer in layers), default=0)
    if needed > most_bytes:
        raise QueryError(
            f"the weights due to each of {groups:,} groups by {listing(grouping.categories)} would take "
            f"{needed / 2**30:,.2f} GiB, more than the {most_bytes / 2**30:,.2f} GiB of most_bytes: group by fewer "
            "values, allow for more, or mute with memory.without(...), which takes no room"
        )


def _kept(run: Run, use: Use) -> torch.dtype:
    """The precision of shares: a parameter's own, but where groups cancel, one below float32 would leave little."""
    return torch.float64 if run.shards[0].dtype(state_tensor(use.parameter.name)) == "F64" else torch.float32


def shares(run: Run, ledger: Ledger, slots: Slots, selection: Selection, grouping: ByTags) -> dict[Use, Share]:
    """For each trained parameter of a layer, what the chosen slots of each group have added to it."""
    if rule_of(run, slots.layer).elementwise:
        return _replayed(run, slots.layer, selection, grouping)
    return _summed(run, ledger, slots, selection, grouping)


def _summed(run: Run, ledger: Ledger, slots: Slots, selection: Selection, grouping: ByTags) -> dict[Use, Share]:
    of, layer = ledger.between(0, selection.until), slots.layer
    initial = {use: initial_part(run, run.shards[0], layer, use, of) for use in layer.trained}
    sums = {use: torch.zeros(size(grouping), *one.shape, dtype=torch.float64) for use, one in initial.items()}
    for stretch in _stretches(slots, selection, grouping):
        collected = stretch.collect(of)
        for group, rows in stretch.pieces():
            keys = _keys(slots, stretch.keys[rows])
            for use, values in collected.items():
                sums[use][group] += keys.of(use).outer(values[rows])
    wholes = {use: one + sums[use].sum(dim=0) for use, one in initial.items()}
    return {use: Share(whole, sums.pop(use).to(_kept(run, use))) for use, whole in wholes.items()}


class _Stretch:
    """Slots whose values are collected, one row for each key that a group visits, before keys are read."""

    def __init__(self, slots: Slots, grouping: ByTags, blocks: list[Block], rows: Array) -> None:
        self._slots, self._grouping, self._blocks = slots, grouping, blocks
        self._rows = rows  # group * stored + key, ascending
        self._groups, self.keys = np.divmod(rows, slots.stored)

    def collect(self, of: Coefficients) -> dict[Use, Tensor]:
        """For each trained use c_t e_t, summed over the visits to each row: (rows, d_out)."""
        layer = self._slots.layer
        found = {use: torch.zeros(len(self._rows), layer.d_out, dtype=self._slots.dtype) for use in layer.trained}
        while self._blocks:
            block = self._blocks.pop(0)
            codes = self._grouping.codes(block)
            index = torch.from_numpy(np.searchsorted(self._rows, _rows_of(block, codes, self._slots)))
            for use in layer.trained:
                found[use].index_add_(0, index, weighted_values(block, use, of))
        return found

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """All rows, some of one group at a time."""
        most = max(1, _PIECE_NUMBERS // (self._slots.layer.keys.width + self._slots.layer.d_out))
        for group, rows in _runs(self._groups):
            for first in range(rows.start, rows.stop, most):
                yield group, slice(first, min(first + most, rows.stop))


def _stretches(slots: Slots, selection: Selection, grouping: ByTags) -> Iterator[_Stretch]:
    """The chosen slots, in as few stretches as there is room for their rows."""
    most = min(_MOST_ROWS, _MOST_BYTES // (len(slots.layer.trained) * slots.layer.d_out * slots.dtype.itemsize))
    blocks: list[Block] = []
    rows: Array = np.empty(0, dtype=np.int64)
    for block in slots.scan(selection):
        new = np.unique(_rows_of(block, grouping.codes(block), slots))
        both, visits = _merged(rows, new), sum(len(one) for one in blocks)
        if blocks and (len(both) > most or visits > _MOST_VISITS * len(rows)):
            yield _Stretch(slots, grouping, blocks, rows)
            blocks, both = [], new
        blocks.append(block)
        rows = both
    if blocks:
        yield _Stretch(slots, grouping, blocks, rows)


def _merged(known: Array, new: Array) -> Array:
    """The union of sorted numbers, of which few are new: quicker than np.union1d, which sorts them all again."""
    places = np.searchsorted(known, new)
    fresh = np.append(known, -1)[places] != new
    return np.insert(known, places[fresh], new[fresh])


def _rows_of(block: Block, codes: NDArray[np.int64], slots: Slots) -> Array:
    """One number for a slot's group and key."""
    return codes * slots.stored + block.key_rows


def _keys(slots: Slots, numbers: Array) -> Keys:
    """Stored keys by their numbers."""
    return kind_of(slots.layer).keys(slots.layer, slots.keys.take(numbers))


def _replayed(run: Run, layer: Layer, selection: Selection, grouping: ByTags) -> dict[Use, Share]:
    adjoints = {use: Adjoint() for use in layer.trained}
    sums = {use: [LongSum() for _ in range(size(grouping))] for use in layer.trained}
    replay = Replay(run, layer)
    for move in replay.latest_first(selection.until):
        chosen = _OfStep.of(replay.slots, move, selection, grouping)
        for use, moved in move.parts.items():
            worth = adjoints[use].back(moved.step())
            for group, product in chosen.products(use) if chosen else ():
                sums[use][group].add(worth * product)
    found = {}
    for use, adjoint in adjoints.items():
        whole = initial_of(run, run.shards[0], layer, use, adjoint.weight, adjoint.momentum)
        groups = torch.zeros(size(grouping), *whole.shape, dtype=_kept(run, use))
        for group, total in enumerate(one.total for one in sums.pop(use)):
            whole += total
            groups[group] += total
        found[use] = Share(whole, groups)
    return found


@dataclass(frozen=True)
class _OfStep:
    """The chosen slots of a step, those of all its backward passes, sorted by group."""

    block: Block
    groups: list[tuple[int, slice, Keys]]

    @classmethod
    def of(cls, slots: Slots, move: Move, selection: Selection, grouping: ByTags) -> "_OfStep | None":
        chosen = slots.chosen_blocks(move.shard, move.passes, selection)
        if not chosen:
            return None
        codes = np.concatenate([grouping.codes(block) for block in chosen])
        order = np.argsort(codes, kind="stable")
        [(_, block)] = slots.at(np.concatenate([block.slots for block in chosen])[order])  # a step is in one shard
        found, cuts = zip(*_runs(codes[order]), strict=True)
        return cls(block, list(zip(found, cuts, _cut_keys(slots, block, cuts), strict=True)))

    def products(self, use: Use) -> Iterator[tuple[int, Tensor]]:
        """What each group has in the gradient."""
        values = self.block.values * torch.from_numpy(self.block.factors(use)).to(self.block.wide)[:, None]
        for group, rows, keys in self.groups:
            yield group, keys.of(use).outer(values[rows])


def _cut_keys(slots: Slots, block: Block, cuts: Sequence[slice]) -> list[Keys]:
    """Of each cut of a block."""
    rows = slots.keys.take(block.key_rows)
    return [kind_of(slots.layer).keys(slots.layer, rows[cut]) for cut in cuts]


def _runs(codes: Array) -> Iterator[tuple[int, slice]]:
    """Each number that sorted ones have, and where it stands."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield int(codes[start]), slice(start, end)

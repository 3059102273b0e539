"""Sum up what each group of slots has added to the parameters: to mute groups is then to subtract small matrices.

    weights = memory.group_weights(by="label")   # one reading of all slots
    weights.groups                               # a table: which group is which label
    weights.model(model, without=[9])            # memory.without(label=9).model(model), without reading anything
    weights.added("layers.2", groups=[3, 5])     # what the slots of two groups have added to a layer

    W_g = sum over the slots t of group g of c_t e_t x_t^T        W = initial part + sum_g W_g

A product of few slots takes nearly as long as one of many. So values are read a block at a time and collected by
group and key, in which visits to the same key become one row, before keys are read: group by group, in large pieces.
Under an optimiser that divides elementwise each step is summed up by itself: all of it shares one coefficient R_t.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.dual.coefficients import ParameterCoefficients
from dualform.errors import QueryError, UnknownName, listing
from dualform.kinds import kind_of
from dualform.slots import Block, By, ByTags, Slots
from dualform.store import Parameter, Run, Use
from dualform.store.schema import state_tensor
from dualform.table import Table

Array = NDArray[Any]
Assemble = Callable[[nn.Module, Mapping[str, Tensor]], nn.Module]

_COLLECTED_ROWS = 1 << 16  # rows of values that are collected before keys are read
_COLLECTED_BYTES = 1 << 28  # and what these may take
_ROW_VISITS = 64  # summed up in a row before sums go on in float64
_PIECE_NUMBERS = 1 << 21  # keys and values of one product: 8 MB in float32
_SUM_BYTES = 12  # of a sum while it is made: in float64, and under some optimisers in float32 besides


@dataclass(frozen=True)
class GroupWeight:
    """A parameter, and what each group has added to it."""

    whole: Tensor  # as the view has it, in float64
    groups: Tensor  # (groups, *shape), in its own precision, at least float32

    @classmethod
    def of(cls, run: Run, parameter: Parameter, whole: Tensor, groups: Tensor) -> "GroupWeight":
        return cls(whole, groups.to(_kept_dtype(run, parameter)))

    def added(self, groups: Sequence[int]) -> Tensor:
        """Return what these groups have added together, in float64."""
        total = torch.zeros_like(self.whole)
        for group in groups:
            total += self.groups[group]
        return total

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes + self.groups.nbytes


class GroupWeights:
    """What each group has added to every recorded layer. Made by `memory.group_weights`.

    Slots are a view's own, groups those of the whole run: one that has no slot in the view has added zeros. `assemble`
    makes a copy of a model in which some parameters are given, and all others are as in the last snapshot; `summed_up`
    says that the view's parameters are in no snapshot.
    """

    def __init__(
        self,
        groups: Table,
        weights: Mapping[str, Mapping[Parameter, GroupWeight]],
        assemble: Assemble,
        *,
        summed_up: bool,
    ) -> None:
        self.groups = groups
        self._weights, self._assemble, self._summed_up = weights, assemble, summed_up

    @property
    def layers(self) -> list[str]:
        """Names of the recorded layers."""
        return list(self._weights)

    @property
    def nbytes(self) -> int:
        """The bytes it takes in memory."""
        return sum(weight.nbytes for layer in self._weights.values() for weight in layer.values())

    def added(self, layer: str, groups: Sequence[int]) -> dict[str, Tensor]:
        """Return what these groups have added together to a layer's trained parameters, in float64.

        Args:
            layer: The layer's name.
            groups: Rows of the table `groups`.
        """
        self._check_layers([layer])
        chosen = self._chosen(groups)
        return {parameter.name: weight.added(chosen) for parameter, weight in self._weights[layer].items()}

    def model(self, model: nn.Module, without: Sequence[int], layers: Sequence[str] | None = None) -> nn.Module:
        """Return a copy of the model in which these groups are muted: `weights.model(model, without=[9])`.

        Where nothing is muted, parameters are the view's own.

        Args:
            model: The architecture; its own parameters are not used.
            without: Rows of the table `groups`.
            layers: The layers to mute them in; None: all.
        """
        chosen, muted = self._chosen(without), self._check_layers(self.layers if layers is None else layers)
        parameters: dict[str, Tensor] = {}
        for name, weights in self._weights.items():
            for parameter, weight in weights.items():
                if name in muted and chosen:
                    parameters[parameter.name] = weight.whole - weight.added(chosen)
                elif self._summed_up:
                    parameters.setdefault(parameter.name, weight.whole)  # unless it is muted as another layer's
        return self._assemble(model, parameters)

    def _chosen(self, groups: Sequence[int]) -> list[int]:
        """Return each group once, however often it is named."""
        for group in groups:
            if not 0 <= group < len(self.groups):
                raise UnknownName("group", group, range(len(self.groups)))
        return sorted(set(groups))

    def _check_layers(self, layers: Sequence[str]) -> Sequence[str]:
        for layer in layers:
            if layer not in self._weights:
                raise UnknownName("layer", layer, self._weights)
        return layers

    def __repr__(self) -> str:
        what = f"{len(self.groups):,} groups by {', '.join(self.groups.columns)}"
        return f"GroupWeights({what}, {len(self._weights):,} layers, {self.nbytes / 1e6:,.1f} MB)"


def groups_of(run: Run, by: By) -> ByTags:
    """Return the groups of all layers, numbered alike for each."""
    used = [layer for layer in run.layers.values() if run.slots(layer.name)]
    groupings = [ByTags.of(run, layer, by) for layer in used or list(run.layers.values())[:1]]
    return groupings[0] if len(groupings) == 1 else ByTags.union(groupings)


def check_memory(run: Run, grouping: ByTags, max_bytes: int) -> None:
    """Raise before any slot is read if all group weights, with the sums of the layer at hand, would take more."""
    groups = grouping.size
    counts = {parameter: prod(parameter.shape) for parameter in run.manifest.parameters if parameter.trained}
    kept = sum(count * (8 + groups * _kept_dtype(run, parameter).itemsize) for parameter, count in counts.items())
    widest = max(sum(counts[use.parameter] for use in layer.trained) for layer in run.layers.values())
    needed = kept + groups * _SUM_BYTES * widest
    if needed > max_bytes:
        raise QueryError(
            f"the weights due to each of {groups:,} groups by {listing(grouping.categories)} would take "
            f"{needed / 2**30:,.2f} GiB, more than the {max_bytes / 2**30:,.2f} GiB of max_bytes: group by fewer "
            "values, allow for more, or mute with memory.without(...), which takes no room"
        )


def _kept_dtype(run: Run, parameter: Parameter) -> torch.dtype:
    """Return the precision they are kept in: a parameter's own, but at least float32, since groups cancel."""
    return torch.float64 if run.shards[0].dtype(state_tensor(parameter.name)) == "F64" else torch.float32


class GroupWeightsFold:
    """Sums up c_t e_t x_t^T over each group's slots, for each trained use of a layer: (groups, d_out, width)."""

    def __init__(self, slots: Slots, grouping: ByTags, of: Mapping[Use, ParameterCoefficients]) -> None:
        self._slots, self._grouping, self._of = slots, grouping, of
        layer = slots.layer
        self._sums = {use: torch.zeros(grouping.size, layer.d_out, use.width, dtype=torch.float64) for use in of}
        self._most = min(_COLLECTED_ROWS, _COLLECTED_BYTES // (len(of) * layer.d_out * slots.dtype.itemsize))
        self._blocks: list[Block] = []  # whose values are to be collected,
        self._rows: Array = np.empty(0, dtype=np.int64)  # and the rows they go to: group * stored + key, ascending

    def __getstate__(self) -> dict[str, Any]:
        """Pickle sums, and no blocks that are still to be collected: these hold their shards."""
        self._sum_up()
        return self.__dict__

    def add(self, block: Block) -> None:
        if self._blocks and not self._slots.layer.stored and not block.is_beside(self._blocks[-1]):
            self._sum_up()  # while the slots that a recipe has made again are there
        new = np.unique(self._rows_of(block))
        rows, visits = _union(self._rows, new), sum(map(len, self._blocks))
        if self._blocks and (len(rows) > self._most or visits > _ROW_VISITS * len(self._rows)):
            self._sum_up()
            rows = new
        self._blocks.append(block)
        self._rows = rows

    def merge(self, other: "GroupWeightsFold") -> None:
        for use, added in other.finish().items():
            self._sums[use] += added

    def finish(self) -> dict[Use, Tensor]:
        self._sum_up()
        return self._sums

    def _rows_of(self, block: Block) -> Array:
        """Return one number for each slot's group and key."""
        return self._grouping.codes(block) * self._slots.stored + block.key_rows

    def _sum_up(self) -> None:
        """Read the keys of the rows, group by group, and add their products to the sums."""
        if not self._blocks:
            return
        layer, collected = self._slots.layer, self._collect()
        groups, keys = np.divmod(self._rows, self._slots.stored)
        most = max(1, _PIECE_NUMBERS // (layer.keys.width + layer.d_out))
        for group, span in _spans(groups):
            for first in range(span.start, span.stop, most):
                rows = slice(first, min(first + most, span.stop))
                some = kind_of(layer).keys(layer, self._slots.keys.take(keys[rows]))
                for use, values in collected.items():
                    self._sums[use][group] += some.of(use).outer(values[rows])
        self._rows = self._rows[:0]

    def _collect(self) -> dict[Use, Tensor]:
        """Return c_t e_t of each use, summed over the visits to each row: (rows, d_out)."""
        shape = len(self._rows), self._slots.layer.d_out
        collected = {use: torch.zeros(shape, dtype=self._slots.dtype) for use in self._of}
        while self._blocks:
            block = self._blocks.pop(0)
            index = torch.from_numpy(np.searchsorted(self._rows, self._rows_of(block)))
            for use, of in self._of.items():
                coefficient = torch.from_numpy(of.of(block, use)).to(block.dtype)[:, None]
                collected[use].index_add_(0, index, block.values * coefficient)
        return collected


def gradients_by_group(
    slots: Slots, blocks: Sequence[Block], grouping: ByTags, uses: Sequence[Use]
) -> Iterator[tuple[Use, int, Tensor]]:
    """Yield what each group has in the gradient of one step, given its blocks: a map (d_out, width) for each use.

    Of a group with slots of several processes, it is the sum of what is yielded.
    """
    if not blocks:
        return
    codes = np.concatenate([grouping.codes(block) for block in blocks])
    order, kind = np.argsort(codes, kind="stable"), kind_of(slots.layer)
    # a step is in one shard, or in one of each process
    for places, block in slots.at(np.concatenate([block.slots for block in blocks])[order]):
        rows = slots.keys.take(block.key_rows)
        values = {use: block.values * torch.from_numpy(block.factors(use)).to(block.dtype)[:, None] for use in uses}
        for group, span in _spans(codes[order][places]):
            keys = kind.keys(slots.layer, rows[span])
            for use in uses:
                yield use, group, keys.of(use).outer(values[use][span])


def _union(known: Array, new: Array) -> Array:
    """Return the union of sorted numbers, of which few are new: np.union1d would sort them all again."""
    places = np.searchsorted(known, new)
    fresh = np.append(known, -1)[places] != new
    return np.insert(known, places[fresh], new[fresh])


def _spans(codes: Array) -> Iterator[tuple[int, slice]]:
    """Yield each number that sorted ones have, and where it stands."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield int(codes[start]), slice(start, end)

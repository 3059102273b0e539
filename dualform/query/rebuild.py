"""A layer's parameters from its slots: the dual form, summed up.

    W_until = initial W_since + momentum m_since + sum_t c_t e_t x_t^T

Under an optimiser that divides elementwise, c_t is a matrix R_t and multiplies elementwise. It does so for
all slots of a step alike, so their products are summed up first: R_t (.) E^T X.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.algebra import Adjoint
from dualform.kinds import kind_of, paired_with
from dualform.query.coefficients import Ledger, ParameterCoefficients, rule_of
from dualform.query.replay import Replay
from dualform.query.scan import Block, Slots
from dualform.query.selection import Selection
from dualform.query.state import optimizer_entry, parameter
from dualform.store import Layer, Run, Shard, Use

Coefficients = Mapping[str, ParameterCoefficients]


@dataclass(frozen=True)
class Rebuilt:
    """A parameter as a map (d_out, d_in), in float64: what is left of its beginning, and what slots added."""

    initial: Tensor
    slots: Tensor

    @property
    def whole(self) -> Tensor:
        return self.initial + self.slots


def weights(run: Run, ledger: Ledger, slots: Slots, selection: Selection, since: Shard) -> dict[str, Tensor]:
    """All parameters of a layer, from a snapshot and the chosen slots after it."""
    found = rebuild(run, ledger, slots, selection, since)
    kind = kind_of(slots.layer)
    return {use.parameter.name: kind.from_map(use, one.whole) for use, one in found.items()}


def rebuild(run: Run, ledger: Ledger, slots: Slots, selection: Selection, since: Shard) -> dict[Use, Rebuilt]:
    """The same, in its two parts. What was not trained stays itself."""
    layer = slots.layer
    if rule_of(run, layer).elementwise:
        trained = _replayed(run, layer, selection, since)
    else:
        trained = _summed(run, ledger, slots, selection, since)
    constant = {use: parameter(since, layer, use).double() for use in layer.uses if not use.trained}
    return trained | {use: Rebuilt(value, torch.zeros_like(value)) for use, value in constant.items()}


def _summed(run: Run, ledger: Ledger, slots: Slots, selection: Selection, since: Shard) -> dict[Use, Rebuilt]:
    of, layer = ledger.between(since.info.last_step, selection.until), slots.layer
    initial = {use: initial_part(run, since, layer, use, of) for use in layer.trained}
    added = {use: torch.zeros_like(initial[use]) for use in layer.trained}
    for block in slots.scan(selection, since.info.last_step):
        for use in layer.trained:
            added[use] += block.product(use, weighted_values(block, use, of)).double()
    return {use: Rebuilt(initial[use], added[use]) for use in layer.trained}


def _replayed(run: Run, layer: Layer, selection: Selection, since: Shard) -> dict[Use, Rebuilt]:
    adjoints = {use: Adjoint() for use in layer.trained}
    added = {use: LongSum() for use in layer.trained}
    replay = Replay(run, layer)
    for move in replay.latest_first(selection.until, since.info.last_step):
        blocks = replay.slots.chosen_blocks(move.shard, move.passes, selection) if selection.conditions else []
        for use, moved in move.parts.items():
            worth = adjoints[use].back(moved.step())
            if not selection.conditions:
                added[use].add(worth * moved.gradient)
            for block in blocks:
                added[use].add(worth * (block.product(use, block.values) * float(block.factors(use)[0])))
    found = {}
    for use, adjoint in adjoints.items():
        initial = initial_of(run, since, layer, use, adjoint.weight, adjoint.momentum)
        found[use] = Rebuilt(initial, torch.zeros_like(initial) + added[use].total)
    return found


class LongSum:
    """A sum of many matrices, in float64 from one stretch of them to the next: to widen each takes long."""

    _STRETCH = 64

    def __init__(self) -> None:
        self._long: Tensor | float = 0.0
        self._short: Tensor | None = None
        self._count = 0

    def add(self, matrix: Tensor) -> None:
        """Take a matrix, which is from now on the sum's own."""
        self._short = matrix if self._short is None else self._short.add_(matrix)
        self._count += 1
        if self._count == self._STRETCH:
            self._long, self._short, self._count = self.total, None, 0

    @property
    def total(self) -> Tensor | float:
        return self._long if self._short is None else self._long + self._short.double()


def initial_part(run: Run, snapshot: Shard, layer: Layer, use: Use, of: Coefficients) -> Tensor:
    """What a linear optimiser left of the weights and the momentum at a snapshot; a constant stays itself."""
    if not use.trained:
        return parameter(snapshot, layer, use).double()
    found = of[use.parameter.name]
    return initial_of(run, snapshot, layer, use, found.initial, found.momentum)


def initial_of(
    run: Run, snapshot: Shard, layer: Layer, use: Use, weight: Tensor | float, momentum: Tensor | float
) -> Tensor:
    """These shares of the weights and the momentum at a snapshot, in float64."""
    result = weight * parameter(snapshot, layer, use).double()
    moving = optimizer_entry(snapshot, layer, use, rule_of(run, layer).momentum)
    return result if moving is None else result + momentum * moving.double()


def weighted_values(block: Block, use: Use, of: Coefficients) -> Tensor:
    """c_t e_t: (slots, d_out)"""
    coefficient = torch.from_numpy(block.coefficients(use, of[use.parameter.name]))
    return block.values * coefficient.to(block.wide)[:, None]


class OutputFold:
    """The layer's output as attention over the slots: sum_t c_t e_t (x_t . q), biases with key 1."""

    def __init__(self, layer: Layer, queries: Tensor, of: Coefficients) -> None:
        self._layer, self._queries, self._of = layer, queries, of
        self.output = torch.zeros(len(queries), layer.d_out, dtype=torch.float64)

    def add(self, block: Block, scores: object) -> None:
        for use in self._layer.trained:
            values = weighted_values(block, use, self._of)
            attended = block.keys.of(use).pair(paired_with(use, self._queries))
            self.output += (attended @ values).double()


def output_of(layer: Layer, parameters: Mapping[Use, Tensor], queries: Tensor) -> Tensor:
    """What a layer with these parameters (as maps, in float64) says: (queries, d_out)."""
    output = torch.zeros(1, 1, dtype=torch.float64)
    for use, found in parameters.items():
        output = output + kind_of(layer).apply(use, found, queries)
    return output

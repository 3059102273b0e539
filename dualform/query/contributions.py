"""What every slot of a layer adds to given directions of its output, for given queries.

    c_t (e_t . g)(x_t . q)                  and for a bias  c_t (e_t . g)
    e_t^T (R_t (.) g q^T) x_t               where the optimiser divides elementwise

Without values it is the effective attention weight: the same with 1 in the place of e_t, and no bias.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dualform.algebra import Adjoint
from dualform.kinds import paired_with
from dualform.query.replay import Replay
from dualform.query.scan import Block
from dualform.query.scope import Scope
from dualform.query.stored import wide
from dualform.store import Use


def slot_scores(scope: Scope, layer: str, queries: Tensor, directions: Tensor, valued: bool) -> Tensor:
    """(slots, queries): of every slot of the layer; those that are not chosen have 0 or their score."""
    how = _replayed if scope.elementwise(layer) else _scanned
    scores = torch.zeros(len(scope.slots(layer)), len(queries), dtype=wide(scope.run))
    if directions.any():  # else, say at a unit that is off, nothing contributes
        how(scope, layer, queries, directions, valued, scores)
    return scores


def _scanned(scope: Scope, layer: str, queries: Tensor, directions: Tensor, valued: bool, scores: Tensor) -> None:
    uses = scope.run.layers[layer].trained if valued else scope.run.layers[layer].attended
    for block in scope.slots(layer).scan(scope.selection):
        pointing = block.values @ directions.mT if valued else directions.sum(dim=1).expand(len(block), -1)
        found = torch.zeros(len(block), len(queries), dtype=scores.dtype)
        for use in uses:
            coefficient = block.coefficients(use, scope.coefficients[use.parameter.name])
            strength = torch.from_numpy(coefficient).to(scores.dtype)[:, None] * pointing  # (slots, queries)
            found += strength * block.keys.of(use).pair(paired_with(use, queries)).mT
        scores[torch.from_numpy(block.slots)] = found


def _replayed(scope: Scope, layer: str, queries: Tensor, directions: Tensor, valued: bool, scores: Tensor) -> None:
    uses = scope.run.layers[layer].trained if valued else scope.run.layers[layer].attended
    units = torch.nonzero(directions.any(dim=0)).flatten()  # nobody asks about the others
    replay = Replay(scope.run, scope.run.layers[layer], units)
    dtype = replay.slots.dtype
    towards = zip(queries.to(dtype), directions[:, units].to(dtype), strict=True)
    aims = [_Aim(query, direction) for query, direction in towards]
    adjoints = {use: Adjoint() for use in scope.run.layers[layer].trained}
    for move in replay.latest_first(scope.selection.until):
        worths = {}
        for use, moved in ((use, moved) for use, moved in move.parts.items() if use in uses):
            worth = torch.as_tensor(adjoints[use].back(moved.step()), dtype=dtype)
            worths[use] = worth.expand(moved.gradient.shape)  # a number, before RAdam divides
        for rows in move.passes:
            block = replay.slots.block(move.shard, rows)
            values = block.values[:, units] if valued else torch.ones(len(block), len(units), dtype=dtype)
            found = [aim.scores(block, values, worths) for aim in aims]
            scores[torch.from_numpy(block.slots)] = torch.stack(found, dim=1).to(scores.dtype)


class _Aim:
    """One query and its direction, of which only the units that are not zero count."""

    def __init__(self, query: Tensor, direction: Tensor) -> None:
        self._query = query  # (d_in,)
        self._units = torch.nonzero(direction).flatten()
        self._direction = direction[self._units]  # (units,)

    def scores(self, block: Block, values: Tensor, worths: Mapping[Use, Tensor]) -> Tensor:
        """(slots,)"""
        pointing = values[:, self._units] * self._direction  # (slots, units)
        found = torch.zeros(len(block), dtype=values.dtype)
        for use, worth in worths.items():
            factor = float(block.factors(use)[0])
            effective = block.keys.of(use).effective(worth[self._units], paired_with(use, self._query[None])[0])
            found += factor * (pointing * effective).sum(dim=1)
        return found

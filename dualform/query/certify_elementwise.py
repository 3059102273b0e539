"""The certificate of a layer whose optimiser divides elementwise.

What slots have added is summed up with their coefficients R_t, matrix by matrix, and compared with the
snapshots in full. The replay beside it lends its moments to R_t, and not its weights.

How much rounding may explain takes one more product a step, so it is looked at only where it is needed: in
half precision, for some steps at the beginning, when a second moment is still a single square and Adam makes a
step of full size of every gradient, however small. And it may explain a hundredth of a change, no more: where
gradients are only rounding, it could explain everything.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch

from dualform.algebra import Adjoint, Step
from dualform.query.cancelling import added_squares
from dualform.query.distance import STORED_EPS, TOLERANCE, Stretch, distance, rounding_of_slots, rounding_of_weights
from dualform.query.rebuild import LongSum, initial_of
from dualform.query.replay import Move, Replay
from dualform.query.scan import Block
from dualform.query.state import parameter
from dualform.store import Layer, Run, Shard, Use

_MOST = 0.01  # of a change, that the rounding of slots may explain


def certify_elementwise(run: Run, layer: Layer) -> tuple[Stretch | None, list[Stretch]]:
    """A layer over the whole run, up to its last snapshot, and over each chapter that ends with one."""
    last = run.snapshot(run.steps)
    whole = _Rebuilt(run, layer, run.shards[0], last)
    starts = {shard: before for before, shard in run.chapters()}
    chapters: list[Stretch] = []
    for shard, moves in groupby(Replay(run, layer).latest_first(last.info.last_step), key=lambda move: move.shard):
        chapter = _Rebuilt(run, layer, starts[shard], shard)
        for move in moves:
            steps = {use: moved.step() for use, moved in move.parts.items()}
            whole.add(move, steps)
            chapter.add(move, steps)
        chapters.append(chapter.certified())
    return whole.certified() if last.info.last_step else None, chapters[::-1]


class _Rebuilt:
    """A layer's parameters between two snapshots: rebuilt from slots, latest first, and as they really were."""

    def __init__(self, run: Run, layer: Layer, before: Shard, after: Shard) -> None:
        self._run, self._layer, self._before, self._after = run, layer, before, after
        self._adjoints = {use: Adjoint() for use in layer.trained}
        self._added = {use: LongSum() for use in layer.trained}
        self._squares = dict.fromkeys(layer.trained, 0.0)
        self._decayed = dict.fromkeys(layer.trained, 0)

    def add(self, move: Move, steps: Mapping[Use, Step], blocks: Sequence[Block] = ()) -> None:
        """One step; with its blocks, also what rounding can have done to it."""
        for use, step in steps.items():
            worth = self._adjoints[use].back(step)
            for block in blocks:
                self._squares[use] += float((worth**2 * added_squares(block, use)).sum())
            self._added[use].add(worth * move.parts[use].gradient)
            self._decayed[use] += step.keep != 1.0

    def certified(self) -> Stretch:
        """How far apart the two are; if too far, gone through once more for what rounding explains of it."""
        found = self._stretch()
        if found.ok(TOLERANCE[self._run.manifest.storage.dtype]):
            return found
        replay, again = Replay(self._run, self._layer), _Rebuilt(self._run, self._layer, self._before, self._after)
        for move in replay.latest_first(found.last_step, found.first_step):
            steps = {use: moved.step() for use, moved in move.parts.items()}
            again.add(move, steps, [replay.slots.block(move.shard, rows) for rows in move.passes])
        return again._stretch()

    def _stretch(self) -> Stretch:
        first, last = self._before.info.last_step, self._after.info.last_step
        found = {}
        for use, adjoint in self._adjoints.items():
            before, after = (parameter(shard, self._layer, use) for shard in (self._before, self._after))
            initial = initial_of(self._run, self._before, self._layer, use, adjoint.weight, adjoint.momentum)
            eps = torch.finfo(before.dtype).eps
            of_slots = rounding_of_slots(self._squares[use], max(eps, STORED_EPS[self._run.manifest.storage.dtype]))
            of_weights = rounding_of_weights(last - first, after, eps, self._decayed[use])
            floor = of_weights + min(of_slots, _MOST * float((after.double() - before.double()).norm()))
            found[use.parameter.name] = distance(
                initial + self._added[use].total, before.double(), after.double(), floor
            )
        return Stretch(first, last, found)

"""The certificate of a layer whose optimiser divides elementwise.

What slots have added is summed up with their coefficients R_t, matrix by matrix, and compared with the
snapshots in full. The replay beside it lends its moments to R_t, and not its weights.
"""

from itertools import groupby

import torch
from torch import Tensor

from dualform.algebra import Adjoint, Step
from dualform.query.distance import STORED_EPS, Stretch, distance, rounding_floor
from dualform.query.rebuild import LongSum, initial_of
from dualform.query.replay import Replay
from dualform.query.state import parameter
from dualform.store import Layer, Part, Run, Shard


def certify_elementwise(run: Run, layer: Layer) -> tuple[Stretch | None, list[Stretch]]:
    """A layer over the whole run, up to its last snapshot, and over each chapter that ends with one."""
    last = run.snapshot(run.steps)
    whole = _Rebuilt(run, layer, run.shards[0], last)
    starts = {shard: before for before, shard in run.chapters()}
    chapters: list[Stretch] = []
    for shard, moves in groupby(Replay(run, layer).latest_first(last.info.last_step), key=lambda move: move.shard):
        chapter = _Rebuilt(run, layer, starts[shard], shard)
        for part, moved in (entry for move in moves for entry in move.parts.items()):
            step = moved.step()
            whole.add(part, step, moved.gradient)
            chapter.add(part, step, moved.gradient)
        chapters.append(chapter.stretch())
    return whole.stretch() if last.info.last_step else None, chapters[::-1]


class _Rebuilt:
    """A layer's parameters between two snapshots: rebuilt from slots, latest first, and as they really were."""

    def __init__(self, run: Run, layer: Layer, before: Shard, after: Shard) -> None:
        self._run, self._layer, self._before, self._after = run, layer, before, after
        self._adjoints = {part: Adjoint() for part in layer.trained}
        self._added = {part: LongSum() for part in layer.trained}
        self._squares = dict.fromkeys(layer.trained, 0.0)
        self._decayed = dict.fromkeys(layer.trained, 0)

    def add(self, part: Part, step: Step, gradient: Tensor) -> None:
        added = self._adjoints[part].back(step) * gradient
        self._added[part].add(added)
        self._squares[part] += float(torch.linalg.vector_norm(added)) ** 2
        self._decayed[part] += step.keep != 1.0

    def stretch(self) -> Stretch:
        first, last = self._before.info.last_step, self._after.info.last_step
        stored_eps = STORED_EPS[self._run.manifest.storage.dtype]
        found = {}
        for part, adjoint in self._adjoints.items():
            before, after = (parameter(shard, self._layer, part) for shard in (self._before, self._after))
            initial = initial_of(self._run, self._before, self._layer, part, adjoint.weight, adjoint.momentum)
            eps = torch.finfo(before.dtype).eps
            rounded = self._squares[part], eps, stored_eps, self._decayed[part]
            floor = rounding_floor(last - first, after, *rounded)
            found[part.parameter] = distance(initial + self._added[part].total, before.double(), after.double(), floor)
        return Stretch(first, last, found)

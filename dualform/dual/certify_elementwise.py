"""The certificate of a layer whose optimiser divides elementwise.

What slots have added is summed up with their coefficients R_t, matrix by matrix, and compared with the
snapshots in full. The replay beside it lends its moments to R_t, and not its weights.

How much rounding may explain takes one more product a step, so it is looked at only where it is needed: in
half precision, for some steps at the beginning, when a second moment is still a single square and Adam makes a
step of full size of every gradient, however small. And it may explain a hundredth of a change, no more: where
gradients are only rounding, it could explain everything.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dualform.algebra import Adjoint, Step
from dualform.dual.certificate import LayerCertificate
from dualform.dual.distance import Stretch, distance, rounding_of_slots, rounding_of_weights
from dualform.dual.replay import LongSum, Move, Replay
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import Selection
from dualform.store import Parameter, Shard

_EXPLAINED_SHARE = 0.01  # of a change, that the rounding of slots may explain
_ROUNDING = 4.0  # times the precision, of the root of the squares that were summed up


def certify(replay: Replay) -> LayerCertificate:
    """A layer over the whole run, up to its last snapshot, and over each chapter that ends with one."""
    run = replay.run
    last, tolerance = run.snapshot(run.steps), run.manifest.storage.precision.tolerance
    until = Selection(last.info.last_step)
    whole, chapters = carry_out(Plan(replay, until, (CertifyFold(replay, run.shards[0], last),)))[0]
    found = LayerCertificate(whole.certified() if last.info.last_step else None, chapters)
    if found.ok(tolerance):
        return found
    return replace(found, cancelled=carry_out(Plan(replay, until, (CancelledFold(replay, last),)))[0])


class _Stretched:
    """A layer's parameters between two snapshots: rebuilt from slots, latest first, and as they really were."""

    def __init__(self, replay: Replay, before: Shard, after: Shard, with_rounding: bool = False) -> None:
        self._replay, self._before, self._after, self._with_rounding = replay, before, after, with_rounding
        self._adjoints = {parameter: Adjoint() for parameter in replay.parameters}
        self._added = {parameter: LongSum() for parameter in replay.parameters}
        self._squares = dict.fromkeys(replay.parameters, 0.0)
        self._decayed = dict.fromkeys(replay.parameters, 0)

    def add(self, move: Move, steps: Mapping[Parameter, Step]) -> None:
        """One step; if asked for, also what rounding can have done to it."""
        for parameter, step in steps.items():
            coefficient = self._adjoints[parameter].back(step)
            if self._with_rounding:
                squares = added_squares(self._replay, move, parameter)
                self._squares[parameter] += float((coefficient**2 * squares).sum())
            self._added[parameter].add(coefficient * move.parameters[parameter].gradient)
            self._decayed[parameter] += step.keep != 1.0

    def certified(self) -> Stretch:
        """How far apart the two are; if too far, gone through once more for what rounding explains of it."""
        found, replay = self._stretch(), self._replay
        if self._with_rounding or found.ok(replay.run.manifest.storage.precision.tolerance):
            return found
        again = AgainFold(_Stretched(replay, self._before, self._after, with_rounding=True))
        stretch: Stretch = carry_out(Plan(replay, Selection(found.last_step), (again,), found.first_step))[0]
        return stretch

    def _stretch(self) -> Stretch:
        first, last = self._before.info.last_step, self._after.info.last_step
        stored_eps, entry = self._replay.run.manifest.storage.precision.eps, self._replay.rule.momentum
        found = {}
        for parameter, adjoint in self._adjoints.items():
            before, after = (stored_parameter(shard, parameter) for shard in (self._before, self._after))
            initial = initial_part(self._before, parameter, entry, adjoint.weight, adjoint.momentum)
            eps, change = torch.finfo(before.dtype).eps, float((after.double() - before.double()).norm())
            of_slots = rounding_of_slots(self._squares[parameter], max(eps, stored_eps))
            of_weights = rounding_of_weights(last - first, after, eps, self._decayed[parameter])
            floor = of_weights + min(of_slots, _EXPLAINED_SHARE * change)
            dual = initial + self._added[parameter].total
            found[parameter.name] = distance(dual, before.double(), after.double(), floor)
        return Stretch(first, last, found)


class CertifyFold:
    """The whole run, and each chapter of it as it comes."""

    def __init__(self, replay: Replay, first: Shard, last: Shard) -> None:
        self._replay, self._whole = replay, _Stretched(replay, first, last)
        self._shard: Shard | None = None
        self._chapter = self._whole
        self._certified: list[Stretch] = []

    def add(self, move: Move) -> None:
        if move.shard is not self._shard:
            self._end_chapter()
            self._shard, self._chapter = move.shard, _Stretched(self._replay, move.before, move.shard)
        steps = {parameter: moved.step() for parameter, moved in move.parameters.items()}
        self._whole.add(move, steps)
        self._chapter.add(move, steps)

    def _end_chapter(self) -> None:
        if self._shard is not None:
            self._certified.append(self._chapter.certified())

    def merge(self, other: "CertifyFold") -> None:
        raise NotImplementedError("a replay is not split: its coefficients go from step to step")

    def finish(self) -> tuple[_Stretched, list[Stretch]]:
        self._end_chapter()
        return self._whole, self._certified[::-1]


class AgainFold:
    """One stretch alone."""

    def __init__(self, stretched: _Stretched) -> None:
        self._stretched = stretched

    def add(self, move: Move) -> None:
        self._stretched.add(move, {parameter: moved.step() for parameter, moved in move.parameters.items()})

    def merge(self, other: "AgainFold") -> None:
        raise NotImplementedError("a replay is not split: its coefficients go from step to step")

    def finish(self) -> Stretch:
        return self._stretched.certified()


class CancelledFold:
    """For each parameter, the share of the entries of its gradients, over all steps, that rounding explains.

    A bias before a BatchNorm has such gradients, or a unit whose examples cancel. SGD moves such a parameter next to
    nowhere; Adam divides by the root of its mean square, and no replay can tell what it did. A certificate that fails
    says so.
    """

    def __init__(self, replay: Replay, last: Shard) -> None:
        self._replay, stored = replay, replay.run.manifest.storage.precision.eps
        dtypes = {one: stored_parameter(last, one).dtype for one in replay.parameters}
        self._eps = {one: max(stored, torch.finfo(dtype).eps) for one, dtype in dtypes.items()}
        self._entries, self._empty = dict.fromkeys(replay.parameters, 0), dict.fromkeys(replay.parameters, 0)

    def add(self, move: Move) -> None:
        for parameter, moved in move.parameters.items():
            squares = torch.zeros_like(moved.gradient) + added_squares(self._replay, move, parameter)
            rounding = moved.gradient.abs() <= _ROUNDING * self._eps[parameter] * squares.sqrt()
            self._entries[parameter] += int((squares > 0).sum())
            self._empty[parameter] += int((rounding & (squares > 0)).sum())

    def merge(self, other: "CancelledFold") -> None:
        for parameter in self._entries:
            self._entries[parameter] += other._entries[parameter]
            self._empty[parameter] += other._empty[parameter]

    def finish(self) -> dict[str, float]:
        return {one.name: self._empty[one] / max(count, 1) for one, count in self._entries.items()}


def added_squares(replay: Replay, move: Move, parameter: Parameter) -> Tensor | float:
    """The squares of what each slot of a step added to a gradient, summed: shaped like the parameter."""
    squares: Tensor | float = 0.0
    for layer in replay.layers:
        for use in (use for use in layer.trained if use.parameter == parameter):
            for block in replay.blocks(move, layer):
                found = block.keys.of(use).outer_squares(block.values * float(block.factors(use)[0]))
                squares = squares + kind_of(layer).from_map(use, found)
    return squares

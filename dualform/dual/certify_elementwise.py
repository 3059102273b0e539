"""Certify a layer whose optimiser divides elementwise.

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
from dualform.dual.distance import SpanCertificate, distance, rounding_of_slots, rounding_of_weights
from dualform.dual.replay import LongSum, Replay, ReplayedStep
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import Selection
from dualform.store import Parameter, Shard

_EXPLAINED_SHARE = 0.01  # of a change, that the rounding of slots may explain
_ROUNDING = 4.0  # times the precision, of the root of the squares that were summed up


def certify(replay: Replay) -> LayerCertificate:
    """Certify a layer over the whole run, up to its last snapshot, and over each chapter that ends with one."""
    run = replay.run
    last, tolerance = run.snapshot(run.steps), run.manifest.storage.precision.tolerance
    until = Selection(last.info.last_step)
    whole, chapters = carry_out(Plan(replay, until, (CertifyFold(replay, run.shards[0], last),)))[0]
    certified = whole.certified() if last.info.last_step else None
    certificate = LayerCertificate(certified, chapters, own_rounding=replay.rule.remainder is not None)
    if certificate.ok(tolerance):
        return certificate
    return replace(certificate, cancelled=carry_out(Plan(replay, until, (CancelledFold(replay, last),)))[0])


class _RebuiltSpan:
    """A layer's parameters between two snapshots: rebuilt from slots, latest first, and as they really were."""

    def __init__(self, replay: Replay, before: Shard, after: Shard, with_rounding: bool = False) -> None:
        self._replay, self._before, self._after, self._with_rounding = replay, before, after, with_rounding
        self._adjoints = {parameter: Adjoint() for parameter in replay.parameters}
        self._added = {parameter: LongSum() for parameter in replay.parameters}
        self._remainders = {parameter: LongSum() for parameter in replay.parameters}
        self._squares = dict.fromkeys(replay.parameters, 0.0)
        self._decayed = dict.fromkeys(replay.parameters, 0)

    def add(self, replayed: ReplayedStep, steps: Mapping[Parameter, Step]) -> None:
        """Add a step; if asked for, also what rounding can have done to it."""
        for parameter, step in steps.items():
            update, adjoint, rule = replayed.updates[parameter], self._adjoints[parameter], self._replay.rule
            if update.remainder is not None:
                self._remainders[parameter].add(update.remainder * (-adjoint.weight * step.rest))
            coefficient = adjoint.back(step)
            if self._with_rounding:
                squares = torch.zeros_like(update.gradient) + added_squares(self._replay, replayed, parameter)
                self._squares[parameter] += float(rule.times(coefficient**2, squares).sum())
            self._added[parameter].add(rule.times(coefficient, update.gradient))
            self._decayed[parameter] += step.keep != 1.0

    def certified(self) -> SpanCertificate:
        """Return how far apart the two are; if too far, replay once more for what rounding explains of it."""
        certificate, replay = self._compare(), self._replay
        if self._with_rounding or certificate.ok(replay.run.manifest.storage.precision.tolerance):
            return certificate
        fold = SpanFold(_RebuiltSpan(replay, self._before, self._after, with_rounding=True))
        until = Selection(certificate.last_step)
        explained: SpanCertificate = carry_out(Plan(replay, until, (fold,), certificate.first_step))[0]
        return explained

    def _compare(self) -> SpanCertificate:
        first, last = self._before.info.last_step, self._after.info.last_step
        stored_eps, rule = self._replay.run.manifest.storage.precision.eps, self._replay.rule
        distances = {}
        for parameter, adjoint in self._adjoints.items():
            before, after = (stored_parameter(shard, parameter) for shard in (self._before, self._after))
            initial = initial_part(self._before, parameter, rule, adjoint.weight, adjoint.momentum)
            eps, change = torch.finfo(before.dtype).eps, float((after.double() - before.double()).norm())
            of_slots = rounding_of_slots(self._squares[parameter], max(eps, stored_eps))
            of_weights = rounding_of_weights(last - first, after, eps, self._decayed[parameter])
            floor = of_weights + min(of_slots, _EXPLAINED_SHARE * change)
            remainder = torch.as_tensor(self._remainders[parameter].total)
            dual, in_no_slot = initial + self._added[parameter].total + remainder, float(remainder.norm())
            distances[parameter.name] = distance(dual, before.double(), after.double(), floor, in_no_slot)
        return SpanCertificate(first, last, distances)


class CertifyFold:
    """Certifies the whole run, and each chapter of it as it comes."""

    def __init__(self, replay: Replay, first: Shard, last: Shard) -> None:
        self._replay, self._whole = replay, _RebuiltSpan(replay, first, last)
        self._shard: Shard | None = None
        self._chapter = self._whole
        self._certified: list[SpanCertificate] = []

    def add(self, step: ReplayedStep) -> None:
        if step.shard is not self._shard:
            self._end_chapter()
            self._shard, self._chapter = step.shard, _RebuiltSpan(self._replay, step.before, step.shard)
        steps = {parameter: update.step() for parameter, update in step.updates.items()}
        self._whole.add(step, steps)
        self._chapter.add(step, steps)

    def _end_chapter(self) -> None:
        if self._shard is not None:
            self._certified.append(self._chapter.certified())

    def merge(self, other: "CertifyFold") -> None:
        raise NotImplementedError("a replay is not split: its coefficients go from step to step")

    def finish(self) -> tuple[_RebuiltSpan, list[SpanCertificate]]:
        self._end_chapter()
        return self._whole, self._certified[::-1]


class SpanFold:
    """Certifies one span alone."""

    def __init__(self, span: _RebuiltSpan) -> None:
        self._span = span

    def add(self, step: ReplayedStep) -> None:
        self._span.add(step, {parameter: update.step() for parameter, update in step.updates.items()})

    def merge(self, other: "SpanFold") -> None:
        raise NotImplementedError("a replay is not split: its coefficients go from step to step")

    def finish(self) -> SpanCertificate:
        return self._span.certified()


class CancelledFold:
    """Counts for each parameter the share of the entries of its gradients, over all steps, that rounding explains.

    A bias before a BatchNorm has such gradients, or a unit whose examples cancel. SGD moves such a parameter next to
    nowhere; Adam divides by the root of its mean square, and no replay can tell what it did. A certificate that fails
    says so.
    """

    def __init__(self, replay: Replay, last: Shard) -> None:
        self._replay, stored = replay, replay.run.manifest.storage.precision.eps
        dtypes = {parameter: stored_parameter(last, parameter).dtype for parameter in replay.parameters}
        self._eps = {parameter: max(stored, torch.finfo(dtype).eps) for parameter, dtype in dtypes.items()}
        self._entries, self._empty = dict.fromkeys(replay.parameters, 0), dict.fromkeys(replay.parameters, 0)

    def add(self, step: ReplayedStep) -> None:
        for parameter, update in step.updates.items():
            squares = torch.zeros_like(update.gradient) + added_squares(self._replay, step, parameter)
            rounding = update.gradient.abs() <= _ROUNDING * self._eps[parameter] * squares.sqrt()
            self._entries[parameter] += int((squares > 0).sum())
            self._empty[parameter] += int((rounding & (squares > 0)).sum())

    def merge(self, other: "CancelledFold") -> None:
        for parameter in self._entries:
            self._entries[parameter] += other._entries[parameter]
            self._empty[parameter] += other._empty[parameter]

    def finish(self) -> dict[str, float]:
        return {parameter.name: self._empty[parameter] / max(count, 1) for parameter, count in self._entries.items()}


def added_squares(replay: Replay, step: ReplayedStep, parameter: Parameter) -> Tensor | float:
    """Return the sum of squares of what each slot of a step added to a gradient: shaped like the parameter."""
    squares: Tensor | float = 0.0
    for layer in replay.layers:
        for use in (use for use in layer.trained if use.parameter == parameter):
            for block in replay.blocks(step, layer):
                added = block.keys.of(use).outer_squares(block.values * float(block.factors(use)[0]))
                squares = squares + kind_of(layer).from_map(use, added)
    return squares

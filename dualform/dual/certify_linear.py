"""Certify a layer whose coefficients are numbers.

Parameters are rebuilt from their slots and compared with the snapshot taken at the time, for the whole
run and for each chapter. Both sides are multiplied by random vectors: that takes one reading of the slots,
and estimates the relative error of the change, |dual - primal| / |W_T - W_0| in the Frobenius norm. What other layers
have added to a tied parameter is seen through the same vectors (sight.py).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.algebra import Rule
from dualform.dual.certificate import LayerCertificate
from dualform.dual.coefficients import ParameterCoefficients
from dualform.dual.distance import Distance, SpanCertificate, distance, rounding_of_slots, rounding_of_weights
from dualform.dual.rounding import rounding_of
from dualform.dual.sight import Sight, draw_vectors, sights_of
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import Block, Selection, Slots
from dualform.store import Layer, Parameter, Run, Shard, Use

Coefficients = Mapping[str, ParameterCoefficients]


@dataclass(frozen=True)
class _Span:
    """The steps between two snapshots, and what they had made of each gradient by the second."""

    before: Shard
    after: Shard
    of: Coefficients

    @property
    def steps(self) -> range:
        return range(self.before.info.last_step, self.after.info.last_step)


def certify(
    run: Run, layer: Layer, sharing: Sequence[Layer], rule: Rule, between: Callable[[int, int], Coefficients]
) -> LayerCertificate:
    """Certify a layer over the whole run, up to its last snapshot, and over each chapter that ends with one.

    Args:
        run: The run.
        layer: The layer.
        sharing: The layers that use its parameters, itself first.
        rule: Its optimiser's algebra.
        between: Returns the coefficients of the steps from one to another.
    """
    last = run.snapshot(run.steps)
    pairs = [(before, shard) for before, shard in run.chapters if before.has_state and shard.has_state]
    spans = [
        _Span(before, after, between(before.info.last_step, after.info.last_step))
        for before, after in [(run.shards[0], last), *pairs]
    ]
    generator = torch.Generator().manual_seed(0)
    vectors = {use: draw_vectors(use.width, generator) for use in layer.trained}
    totals = [{use.parameter: _ProbedSum() for use in layer.trained} for _ in spans]
    for user in sharing:
        sights = sights_of(layer, user, vectors, generator)
        fold = CertifyFold(spans, sights)
        probed = carry_out(Plan(Slots(run, user), Selection(last.info.last_step), (fold,)))[0]
        of_rounding = rounding_of(run, user, [span.of for span in spans], range(last.info.last_step), sights)
        for total, sums, roundings in zip(totals, probed, of_rounding, strict=True):
            for use, added in sums.items():
                total[use.parameter].add(added)
            for use, rounding in roundings.items():
                total[use.parameter].add(_ProbedSum(rounding, rounding=rounding))
    whole, *chapters = [
        SpanCertificate(
            span.steps.start,
            span.steps.stop,
            {use.parameter.name: _distance(run, rule, layer, use, vectors[use], span, total) for use in layer.trained},
        )
        for span, total in zip(spans, totals, strict=True)
    ]
    return LayerCertificate(whole if last.info.last_step else None, chapters)


@dataclass
class _ProbedSum:
    """What slots have added to a parameter, times vectors of the layer's map."""

    dual: Tensor | float = 0.0  # (d_out, probes)
    squares: float = 0.0  # sum of (|c_t| |e_t| |x_t r|)^2
    rounding: Tensor | float = 0.0  # the part of it that is due to rounding to half precision, and in no slot

    def add(self, other: "_ProbedSum") -> None:
        self.dual = self.dual + other.dual
        self.squares += other.squares
        self.rounding = self.rounding + other.rounding


class CertifyFold:
    """Sums up what a layer's slots have added in each span, times vectors: of the whole run, then of its chapters."""

    def __init__(self, spans: Sequence[_Span], sights: Mapping[Use, Sight]) -> None:
        self._sights = sights
        self._spans = [(span.steps, span.of) for span in spans]  # without shards: they would travel with the fold
        self._starts = [span.steps.start for span in spans[1:]]
        self._sums = [{use: _ProbedSum() for use in sights} for _ in spans]

    def add(self, block: Block) -> None:
        step, values = int(block.steps[0]), block.values
        likely = {0, bisect_right(self._starts, step)}  # the whole run, and the last chapter that has begun by then
        covering = [(self._spans[i][1], self._sums[i]) for i in sorted(likely) if step in self._spans[i][0]]
        for use, sight in self._sights.items():
            seen = sight.of_slots(block.keys, values)
            for of, sums in covering:
                coefficient = torch.from_numpy(of[use.parameter.name].of(block, use))
                squares = float((coefficient * seen.sizes).square().sum())
                sums[use].add(_ProbedSum(seen.times(coefficient), squares))

    def merge(self, other: "CertifyFold") -> None:
        for sums, others in zip(self._sums, other._sums, strict=True):
            for use, added in others.items():
                sums[use].add(added)

    def finish(self) -> list[dict[Use, _ProbedSum]]:
        return self._sums


def _distance(
    run: Run, rule: Rule, layer: Layer, use: Use, vectors: Tensor, span: _Span, total: Mapping[Parameter, _ProbedSum]
) -> Distance:
    """Compare a parameter between two snapshots: rebuilt from the slots of all its uses, and as it really was."""

    def probed(parameter: Tensor) -> Tensor:
        return kind_of(layer).as_map(use, parameter.double()) @ vectors

    added, of = total[use.parameter], span.of[use.parameter.name]
    before, after = (stored_parameter(shard, use.parameter) for shard in (span.before, span.after))
    initial = initial_part(span.before, use.parameter, rule, of.initial, of.momentum)
    eps = torch.finfo(before.dtype).eps
    of_slots = rounding_of_slots(added.squares, max(eps, run.manifest.storage.precision.eps))
    floor = of_slots + rounding_of_weights(len(span.steps), probed(after), eps)
    rounding = float(torch.as_tensor(added.rounding).norm())
    return distance(probed(initial) + added.dual, probed(before), probed(after), floor, rounding)

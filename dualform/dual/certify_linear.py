"""Certify a layer whose coefficients are numbers.

Parameters are rebuilt from their slots and compared with the snapshot taken at the time, for the whole
run and for each chapter. Both sides are multiplied by random vectors: that takes one reading of the slots,
and estimates the relative error of the change, |dual - primal| / |W_T - W_0| in the Frobenius norm.
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
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Plan, carry_out
from dualform.kinds import kind_of
from dualform.slots import Block, Selection, Slots
from dualform.store import Layer, Run, Shard, Use

PROBES = 16

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
    # What others add to a parameter is known as they use it: then it is compared in full.
    uses = [use for user in sharing for use in user.trained]
    vectors = {use: _vectors(use.width, generator, full=len(sharing) > 1) for use in uses}
    probed: dict[str, list[dict[Use, _ProbedSum]]] = {}
    for user in sharing:
        fold = CertifyFold(user, spans, vectors)
        probed[user.name] = carry_out(Plan(Slots(run, user), Selection(last.info.last_step), (fold,)))[0]
        of_rounding = rounding_of(run, user, [span.of for span in spans], range(last.info.last_step), vectors)
        for sums, roundings in zip(probed[user.name], of_rounding, strict=True):
            for use, rounding in roundings.items():
                sums[use].add(_ProbedSum(rounding, rounding=rounding))
    comparison = _Comparison(run, layer, sharing, rule, vectors)
    whole, *chapters = [
        comparison.certify(span, {name: sums[i] for name, sums in probed.items()}) for i, span in enumerate(spans)
    ]
    return LayerCertificate(whole if last.info.last_step else None, chapters)


def _vectors(width: int, generator: torch.Generator, full: bool) -> Tensor:
    """Return vectors r, scaled so that |W r| estimates |W|, or is |W| where a key has few entries: (width, probes)."""
    if full or width <= PROBES:
        return torch.eye(width, dtype=torch.float64)
    drawn: Tensor = torch.randn(width, PROBES, generator=generator, dtype=torch.float64)
    return drawn.div(PROBES**0.5)


@dataclass
class _ProbedSum:
    """What slots have added to a map, times its vectors."""

    dual: Tensor  # (d_out, probes)
    squares: float = 0.0  # sum of (|c_t| |e_t| |x_t r|)^2
    rounding: Tensor | float = 0.0  # the part of it that is due to rounding to half precision, and in no slot

    def add(self, other: "_ProbedSum") -> None:
        self.dual = self.dual + other.dual
        self.squares += other.squares
        self.rounding = self.rounding + other.rounding


class CertifyFold:
    """Sums up what a layer's slots have added in each span, times vectors: of the whole run, then of its chapters."""

    def __init__(self, layer: Layer, spans: Sequence[_Span], vectors: Mapping[Use, Tensor]) -> None:
        self._uses = layer.trained
        self._spans = [(span.steps, span.of) for span in spans]  # without shards: they would travel with the fold
        self._starts = [span.steps.start for span in spans[1:]]
        self._vectors = {use: vectors[use] for use in layer.trained}
        shapes = {use: (layer.d_out, vectors[use].shape[1]) for use in layer.trained}
        self._sums = [
            {use: _ProbedSum(torch.zeros(shape, dtype=torch.float64)) for use, shape in shapes.items()} for _ in spans
        ]

    def add(self, block: Block) -> None:
        step, values = int(block.steps[0]), block.values.double()
        sizes = values.norm(dim=1)
        likely = {0, bisect_right(self._starts, step)}  # the whole run, and the last chapter that has begun by then
        covering = [(self._spans[i][1], self._sums[i]) for i in sorted(likely) if step in self._spans[i][0]]
        for use in self._uses:
            signals = block.keys.of(use).pair(self._vectors[use].mT).mT  # (slots, probes)
            for of, sums in covering:
                coefficient = torch.from_numpy(of[use.parameter.name].of(block, use))
                sums[use].dual += values.mT @ (signals * coefficient[:, None])
                sums[use].squares += float((coefficient * sizes * signals.norm(dim=1)).square().sum())

    def merge(self, other: "CertifyFold") -> None:
        for sums, others in zip(self._sums, other._sums, strict=True):
            for use, added in others.items():
                sums[use].add(added)

    def finish(self) -> list[dict[Use, _ProbedSum]]:
        return self._sums


class _Comparison:
    """A layer's parameters between two snapshots: rebuilt from the slots of all their uses, and as they really were."""

    def __init__(
        self, run: Run, layer: Layer, sharing: Sequence[Layer], rule: Rule, vectors: Mapping[Use, Tensor]
    ) -> None:
        self._run, self._layer, self._others, self._rule = run, layer, sharing[1:], rule
        self._vectors, self._kind = vectors, kind_of(layer)

    def certify(self, span: _Span, sums: Mapping[str, Mapping[Use, _ProbedSum]]) -> SpanCertificate:
        distances = {}
        for use in self._layer.trained:
            own = sums[self._layer.name][use]
            total = _ProbedSum(own.dual, own.squares, own.rounding)
            for other in self._others:
                for theirs in (theirs for theirs in other.trained if theirs.parameter == use.parameter):
                    added = sums[other.name][theirs]
                    dual, rounding = (
                        self._kind.as_map(use, kind_of(other).from_map(theirs, torch.zeros_like(added.dual) + part))
                        for part in (added.dual, added.rounding)
                    )
                    total.add(_ProbedSum(dual, added.squares, rounding))
            distances[use.parameter.name] = self._distance(use, span, total)
        return SpanCertificate(span.before.info.last_step, span.after.info.last_step, distances)

    def _distance(self, use: Use, span: _Span, added: _ProbedSum) -> Distance:
        def probed(parameter: Tensor) -> Tensor:
            return self._kind.as_map(use, parameter.double()) @ self._vectors[use]

        before, after = (stored_parameter(shard, use.parameter) for shard in (span.before, span.after))
        of = span.of[use.parameter.name]
        initial = initial_part(span.before, use.parameter, self._rule.momentum, of.initial, of.momentum)
        eps = torch.finfo(before.dtype).eps
        of_slots = rounding_of_slots(added.squares, max(eps, self._run.manifest.storage.precision.eps))
        steps = span.after.info.last_step - span.before.info.last_step
        floor = of_slots + rounding_of_weights(steps, probed(after), eps)
        rounding = float(torch.as_tensor(added.rounding).norm())
        return distance(probed(initial) + added.dual, probed(before), probed(after), floor, rounding)

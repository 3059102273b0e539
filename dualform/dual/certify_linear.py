"""The certificate of a layer whose coefficients are numbers.

Parameters are rebuilt from their slots and compared with the snapshot taken at the time, for the whole
run and for each chapter. Both sides are multiplied by random vectors: that takes one reading of the slots,
and estimates the relative error of the change, |dual - primal| / |W_T - W_0| in the Frobenius norm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.algebra import Rule
from dualform.dual.certificate import LayerCertificate
from dualform.dual.coefficients import ParameterCoefficients
from dualform.dual.distance import Distance, Stretch, distance, rounding_of_slots, rounding_of_weights
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
    """A layer over the whole run, up to its last snapshot, and over each chapter that ends with one.

    `sharing` are the layers that use its parameters, itself first.
    """
    last = run.snapshot(run.steps)
    pairs = [(before, shard) for before, shard in run.chapters if before.has_state and shard.has_state]
    spans = [
        _Span(before, after, between(before.info.last_step, after.info.last_step))
        for before, after in [(run.shards[0], last), *pairs]
    ]
    generator = torch.Generator().manual_seed(0)
    # What others add to a parameter is known as they use it: then it is compared in full.
    vectors = {use: _vectors(use.width, generator, full=len(sharing) > 1) for one in sharing for use in one.trained}
    folds = {one.name: CertifyFold(one, spans, vectors) for one in sharing}
    seen: dict[str, list[dict[Use, _Seen]]] = {
        one.name: carry_out(Plan(Slots(run, one), Selection(last.info.last_step), (folds[one.name],)))[0]
        for one in sharing
    }
    comparison = _Comparison(run, layer, sharing, rule, vectors)
    whole, *chapters = [
        comparison.stretch(span, {one.name: seen[one.name][i] for one in sharing}) for i, span in enumerate(spans)
    ]
    return LayerCertificate(whole if last.info.last_step else None, chapters)


def _vectors(width: int, generator: torch.Generator, full: bool) -> Tensor:
    """(width, probes): scaled so that |W r| estimates |W|; where a key has few entries, it is |W|."""
    if full or width <= PROBES:
        return torch.eye(width, dtype=torch.float64)
    drawn: Tensor = torch.randn(width, PROBES, generator=generator, dtype=torch.float64)
    return drawn.div(PROBES**0.5)


@dataclass
class _Seen:
    """What slots have added to a map, seen through its vectors."""

    dual: Tensor  # (d_out, probes)
    squares: float = 0.0  # sum of (|c_t| |e_t| |x_t r|)^2

    def add(self, other: "_Seen") -> None:
        self.dual += other.dual
        self.squares += other.squares


class CertifyFold:
    """What a layer's slots have added in each span, seen through vectors."""

    def __init__(self, layer: Layer, spans: Sequence[_Span], vectors: Mapping[Use, Tensor]) -> None:
        self._uses = layer.trained
        self._spans = [(span.steps, span.of) for span in spans]  # without shards: they would travel with the fold
        self._vectors = {use: vectors[use] for use in layer.trained}
        shapes = {use: (layer.d_out, vectors[use].shape[1]) for use in layer.trained}
        self._seen = [{use: _Seen(torch.zeros(s, dtype=torch.float64)) for use, s in shapes.items()} for _ in spans]

    def add(self, block: Block) -> None:
        step, values = int(block.steps[0]), block.values.double()
        sizes = values.norm(dim=1)
        covering = [(of, seen) for (steps, of), seen in zip(self._spans, self._seen, strict=True) if step in steps]
        for use in self._uses:
            signals = block.keys.of(use).pair(self._vectors[use].mT).mT  # (slots, probes)
            for of, seen in covering:
                coefficient = torch.from_numpy(of[use.parameter.name].of(block, use))
                seen[use].dual += values.mT @ (signals * coefficient[:, None])
                seen[use].squares += float((coefficient * sizes * signals.norm(dim=1)).square().sum())

    def merge(self, other: "CertifyFold") -> None:
        for mine, others in zip(self._seen, other._seen, strict=True):
            for use, seen in others.items():
                mine[use].add(seen)

    def finish(self) -> list[dict[Use, _Seen]]:
        return self._seen


class _Comparison:
    """A layer's parameters between two snapshots: rebuilt from the slots of all their uses, and as they really were."""

    def __init__(
        self, run: Run, layer: Layer, sharing: Sequence[Layer], rule: Rule, vectors: Mapping[Use, Tensor]
    ) -> None:
        self._run, self._layer, self._others, self._rule = run, layer, sharing[1:], rule
        self._vectors, self._kind = vectors, kind_of(layer)

    def stretch(self, span: _Span, seen: Mapping[str, Mapping[Use, _Seen]]) -> Stretch:
        found = {}
        for use in self._layer.trained:
            total = _Seen(seen[self._layer.name][use].dual.clone(), seen[self._layer.name][use].squares)
            for other in self._others:
                for theirs in (one for one in other.trained if one.parameter == use.parameter):
                    whole = kind_of(other).from_map(theirs, seen[other.name][theirs].dual)
                    total.add(_Seen(self._kind.as_map(use, whole), seen[other.name][theirs].squares))
            found[use.parameter.name] = self._distance(use, span, total)
        return Stretch(span.before.info.last_step, span.after.info.last_step, found)

    def _distance(self, use: Use, span: _Span, seen: _Seen) -> Distance:
        def shown(parameter: Tensor) -> Tensor:
            return self._kind.as_map(use, parameter.double()) @ self._vectors[use]

        before, after = (stored_parameter(shard, use.parameter) for shard in (span.before, span.after))
        of = span.of[use.parameter.name]
        initial = initial_part(span.before, use.parameter, self._rule.momentum, of.initial, of.momentum)
        eps = torch.finfo(before.dtype).eps
        of_slots = rounding_of_slots(seen.squares, max(eps, self._run.manifest.storage.precision.eps))
        steps = span.after.info.last_step - span.before.info.last_step
        floor = of_slots + rounding_of_weights(steps, shown(after), eps)
        return distance(shown(initial) + seen.dual, shown(before), shown(after), floor)

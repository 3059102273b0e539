"""Audit a step: are the recorded keys and values all of the gradient?

If they are not, something else was in it (a use that was not seen, clipping by value), and the two
sides of the probe differ with probability close to one.

Each backward pass has one factor: 1, unless the gradient was clipped, unscaled or zeroed in between.
Many factors may explain a gradient; the simplest are taken. All 1, or 1 for the latest passes and 0 for
those before a zero_grad; then the same with one common factor; then one for each pass. And each of these
first for all layers together, then for every layer, then for every parameter alone. Should a step have
more passes than its gradients have independent numbers, the sum is exact all the same, but how it splits
over the passes is not unique.

The gradient of a tied parameter is the sum over all layers that use it. A pass has one factor in all of
them, and they are explained, or fail, together.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.errors import NotFinite
from dualform.recorder.captures import Capture
from dualform.recorder.common_factor import Array, Explanation, as_float64, explain_by_common_factor
from dualform.recorder.evidence import (
    SLACK,
    LayerEvidence,
    StepEvidence,
    Uses,
    families,
    half_rounding_of_uses,
    rounding_of_sum,
    rounding_of_uses,
)
from dualform.recorder.layers import RecordedLayer
from dualform.recorder.rounded_factor import refined
from dualform.recorder.world import ALONE, World

_TINY = float(np.finfo(np.float64).tiny)
_SUMS_SO_FAR = 64  # of a pass, that are looked at


class Unexplained(NamedTuple):
    """A parameter whose gradient is not explained, and whether any backward pass through its layer was seen."""

    parameter: str
    seen: bool


class AuditedStep(NamedTuple):
    """A step, with the layers whose gradients are explained, and those that failed."""

    number: int
    evidence: StepEvidence
    explanations: Sequence[Explanation]  # of each layer of the evidence
    failed: Mapping[str, Unexplained]  # by layer; none of them is in the evidence, nor in that of later steps


def audit(steps: Sequence[StepEvidence], first: int, world: World = ALONE) -> Iterator[AuditedStep]:
    """Explain step after step, from number `first` on; a layer that fails is left out of the steps after it.

    All processes of a training audit the same steps, and ask one another for what only one has.
    """
    simple = explain_by_common_factor([step.layers for step in steps])
    dropped: set[str] = set()
    for place, step in enumerate(steps):
        number = first + place
        explained, failed = simple.get(place, []), dict[str, Unexplained]()
        if place not in simple or dropped:
            explained, failed = _explain([e for e in step.layers if e.layer.name not in dropped], number, world)
            dropped |= {*failed}
            step = step._replace(layers=[e for e in step.layers if e.layer.name not in dropped])
        if any(evidence.half_rounding for evidence in step.layers):
            explained = refined(step.layers, explained, world)
        yield AuditedStep(number, step, explained, failed)


def _explain(
    layers: Sequence[LayerEvidence], step: int, world: World
) -> tuple[list[Explanation], dict[str, Unexplained]]:
    """Explain the layers of a step, by as many factors as it takes; and say which of them nothing explains."""
    if not layers:
        return [], {}
    numbers = sorted({number for evidence in layers for number in evidence.passes})
    equations = [_Equation(uses, numbers, world) for family in families(layers) for uses in family.uses]
    for equation in equations:
        if not np.isfinite(equation.target).all():
            raise NotFinite(
                f"step {step}, layer {equation.layer!r}: the gradient of {equation.parameter!r} is NaN or infinite; "
                "lower the learning rate or look at the batch. The steps before it are kept"
            )
    simplest = _simplest(equations)
    failed: dict[str, Unexplained] = {}
    for e in (e for e in equations if e not in simplest):
        for layer in e.family:  # of layers with tied parameters, none is known without the others
            failed.setdefault(layer, Unexplained(e.parameter, bool(e.products.any())))
    if failed:  # what is left may have a simpler explanation without them
        return _explain([evidence for evidence in layers if evidence.layer.name not in failed], step, world)[0], failed
    by_parameter = {equation.parameter: equation for equation in equations}
    explained = []
    for evidence in layers:
        trained = evidence.layer.description.trained
        own_equations = [by_parameter[trained[use].parameter.name] for use in evidence.view.stepped]
        factors = np.zeros((len(evidence.passes), len(trained)))
        own = [numbers.index(number) for number in evidence.passes]
        factors[:, evidence.view.stepped] = np.stack([simplest[e][own] for e in own_equations], axis=1)
        explained.append(Explanation(factors, max(e.residual(simplest[e]) for e in own_equations)))
    return explained, {}


class _Equation:
    """One parameter's gradient against all backward passes of the step, zero where they missed the layers that use it.

    Small arrays, multiplied without numpy's matrix product: that would wake a second set of threads,
    beside torch's, which slow down the training.
    """

    def __init__(self, uses: Uses, numbers: Sequence[int], world: World) -> None:
        self._uses, self._numbers, self._world = uses, numbers, world
        first, use = uses[0]  # the one that looks at the gradient
        self.layer, self.family = first.layer.name, first.layer.family
        self.parameter = first.layer.description.trained[use].parameter.name
        self.target = as_float64(first.view.products[use])  # (n,)
        products = np.zeros((len(numbers), len(self.target)))
        for evidence, i in uses:
            for number, of_pass in evidence.passes.items():
                products[numbers.index(number)] += as_float64(of_pass.product[evidence.layer.probe.slices[i]])
        passes = [of_pass for evidence, _ in uses for of_pass in evidence.passes.items()]
        accumulated = {number for number, of_pass in passes if of_pass.accumulated}
        idle = {number for number, _ in passes} - accumulated if accumulated else set()
        self.counted = np.array([number not in idle for number in numbers], dtype=bool)
        # A pass with a NaN or infinite entry cannot be in a finite gradient: its factor is 0.
        self.finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(products), axis=1)  # (passes,)
        self.products = np.where(self.finite[:, None], products, 0.0)  # (passes, n)

    def _captures(self) -> Iterator[tuple[int, LayerEvidence, slice, Capture]]:
        """Yield what went through the layers here in finite passes: where the pass is, layer, its numbers, the call."""
        for evidence, use in self._uses:
            for number, of_pass in evidence.passes.items():
                place = self._numbers.index(number)
                calls = (capture for capture in of_pass.captures if isinstance(capture, Capture))
                for capture in calls if self.finite[place] else ():
                    yield place, evidence, evidence.layer.probe.slices[use], capture

    @cached_property
    def bounds(self) -> Array:
        """|E|^T (|X| |r|) of each pass: what rounding is measured by, where the gradient cancels."""
        bounds = np.zeros(self.products.shape)
        for place, evidence, numbers, capture in self._captures():
            keys, values = capture.unpacked(evidence.layer)
            bounds[place] += as_float64(evidence.layer.probe.of_rows(keys, values, absolute=True)[numbers])
        return self._world.mean(bounds)

    @cached_property
    def rounding(self) -> Array:
        """What rounding may leave over of each pass, elementwise: by absolute values, and by the sums so far."""
        sums = np.zeros(self.products.shape)
        for place, evidence, numbers, capture in self._captures():
            sums[place] += rounding_of_sum(capture.slots) * _largest_sum(evidence.layer, numbers, capture)
        eps = max(evidence.view.eps for evidence, _ in self._uses)
        rounding: Array = eps * (SLACK * self.bounds + self._world.mean(sums))
        return rounding

    def explained(self, factors: Array) -> bool:
        """Return whether nothing is left over but rounding."""
        predicted = _weighted(factors, self.products)
        gap = self.target - predicted
        size, low = _norm(predicted), half_rounding_of_uses(self._uses)
        if _norm(gap) <= rounding_of_uses(self._uses) * size:
            return True  # it fits as a whole; no elementwise bound is needed
        rounding = _weighted(np.abs(factors), self.rounding)
        return bool((np.abs(gap) <= rounding + low * size / gap.size**0.5 + _TINY).all())

    def residual(self, factors: Array) -> float:
        """Return what is left over, relative to the gradient; to what it is the sum of, if that cancels."""
        size, gap = _norm(self.target), _norm(self.target - _weighted(factors, self.products))
        if gap > rounding_of_uses(self._uses) * size:
            size = max(size, _norm(_weighted(np.abs(factors), self.bounds)))
        return gap / size if size else 0.0


def _largest_sum(layer: RecordedLayer, numbers: slice, capture: Capture) -> Array:
    """Return the largest sum so far, as the rows of a call are summed up one after the other: (n,)."""
    keys, values = capture.unpacked(layer)
    size = -(-len(keys) // _SUMS_SO_FAR)
    pairs = zip(keys.split(size), values.split(size), strict=True)
    parts = [as_float64(layer.probe.of_rows(x, e)[numbers]) for x, e in pairs]
    largest: Array = np.abs(np.cumsum(parts, axis=0)).max(axis=0)
    return largest


def _simplest(equations: Sequence[_Equation]) -> dict[_Equation, Array]:
    """Return the simplest factors: for all equations together, for those of each family of layers, for each alone.

    An equation that no factors fit is not in the result.
    """
    candidates = (f for f in _candidates(equations) if all(e.explained(f) for e in equations))
    common = next(candidates, None)
    if common is not None:
        return dict.fromkeys(equations, common)
    by_family: dict[tuple[str, ...], list[_Equation]] = {}
    for equation in equations:
        by_family.setdefault(equation.family, []).append(equation)
    if len(by_family) > 1:
        parts = [_simplest(by_family[family]) for family in sorted(by_family)]
    else:
        parts = [_simplest([e]) for e in equations] if len(equations) > 1 else []
    return {e: factors for part in parts for e, factors in part.items()}


def _candidates(equations: Sequence[_Equation]) -> Iterator[Array]:
    """Yield factors to try, from simple to general: of passes that were accumulated, and then of any."""
    finite = np.all([e.finite for e in equations], axis=0)
    counted = finite & np.all([e.counted for e in equations], axis=0)
    if not np.array_equal(counted, finite):
        yield from _candidates_of(equations, counted)
    yield from _candidates_of(equations, finite)


def _candidates_of(equations: Sequence[_Equation], finite: NDArray[np.bool_]) -> Iterator[Array]:
    """Yield factors of some of the passes, from simple to general."""
    # Parameters are brought to one scale, so that a bias counts as much as a weight.
    scale = [_norm(e.products) or 1.0 for e in equations]
    targets = np.concatenate([e.target / s for e, s in zip(equations, scale, strict=True)])
    products = np.concatenate([e.products / s for e, s in zip(equations, scale, strict=True)], axis=1)
    # All passes, or those after a zero_grad; unscaled first, since in a tiny layer any scale may fit.
    suffixes = [
        np.where(np.arange(len(finite)) >= first, finite, False).astype(np.float64) for first in range(len(finite) + 1)
    ]
    yield from suffixes
    for latest in suffixes:
        together = _weighted(latest, products)
        if together.any():
            yield latest * ((together * targets).sum() / np.square(together).sum())
    for latest in reversed(suffixes[:-1]):  # one factor for each pass, of as few passes as will do
        single = _fitted(products, targets, latest > 0)
        yield np.where(np.abs(single - 1) < 1e-2, 1.0, single)
        yield single


def _fitted(products: Array, targets: Array, used: NDArray[np.bool_]) -> Array:
    """Fit the factors of some passes by least squares, refined once: a clipped gradient is small beside its passes."""
    factors = np.zeros(len(used))
    if used.any():
        matrix = torch.from_numpy(products[used].T.copy())  # (equations, passes)
        for _ in range(2):
            left_over = torch.from_numpy(targets - _weighted(factors, products))[:, None]
            factors[used] += as_float64(torch.linalg.lstsq(matrix, left_over, driver="gelsd").solution[:, 0])
    return factors


def _weighted(factors: Array, products: Array) -> Array:
    """Return the sum over passes, each times its factor: (n,)."""
    total: Array = (factors[:, None] * products).sum(axis=0)
    return total


def _norm(values: Array) -> float:
    return float(np.sqrt(np.square(values).sum()))


def unexplained(step: AuditedStep) -> str:
    """Say which layers of a step failed, each with a parameter, and what may be the cause."""
    named = ", ".join(f"layer {layer!r}: the gradient of {failed.parameter!r}" for layer, failed in step.failed.items())
    if len(step.failed) == 1:
        wrong = "is not the sum of what went through the layer"
    else:
        wrong = "are not the sums of what went through these layers"
    if any(failed.seen for failed in step.failed.values()):
        hint = (
            "was it left from before the last step (zero_grad missing), clipped by value or changed by hand, or is the "
            "weight used elsewhere too?"
        )
    else:
        hint = (
            "no backward pass through the layer was seen. Was it left from before the last step (zero_grad missing) "
            "or before the recording? Was the model compiled and run before (call torch.compiler.reset(), or compile "
            "it after recording has begun)? Is the layer called in torch.vmap or torch.func, or is its weight used "
            "without it?"
        )
    return f"step {step.number}, {named} {wrong}; {hint}"

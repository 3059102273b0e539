"""The audit of a step: are the recorded keys and values all of a layer's gradient?

If they are not, something else was in it (a tied weight, a second use, clipping by value), and the two
sides of the probe differ with probability close to one.

Each backward pass has one factor: 1, unless the gradient was clipped, unscaled or zeroed in between.
The simplest factors that explain the gradient are taken: all 1, one for all passes, one for each pass,
and only then one for each pass and parameter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.errors import NotFinite, UnexplainedGradient
from dualform.recorder.capture import Pass
from dualform.recorder.probe import Probe, array

Array = NDArray[np.float64]

# What rounding may leave over, elementwise: _SLACK eps |E|^T |X| |r|. The bound uses absolute values,
# not the gradient's size, since a gradient may cancel to nothing (a bias before a BatchNorm does).
_SLACK = 32.0
_LOW_SLACK = 4.0  # and of the gradient's own size, where it was rounded to half precision as a whole
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Explained:
    """Factors (passes, trained parts) of one step, and the share of the gradient left over."""

    factors: Array
    residual: float


def explain(probe: Probe, gradients: Sequence[Tensor], passes: Sequence[Pass], step: int) -> Explained:
    """Explain the gradients of a layer's trained parts by its backward passes, or raise."""
    where = f"step {step}, layer {probe.layer.name!r}"
    names = [part.parameter for part in probe.layer.trained]
    equations = _Equations(probe, gradients, passes)
    if (quick := equations.quick()) is not None:
        return quick
    for name, target in zip(names, equations.targets, strict=True):
        if not np.isfinite(target).all():
            raise NotFinite(
                f"{where}: the gradient of {name!r} is NaN or infinite; lower the learning rate or look at "
                "the batch. The steps before it are kept"
            )
    everything = range(len(names))
    shared = equations.simplest(everything)
    factors = []
    for i, name in enumerate(names):
        found = equations.simplest([i]) if shared is None else shared
        if found is None:
            raise UnexplainedGradient(f"{where}: {_reason(name, bool(passes))}")
        factors.append(found)
    residual = max(equations.residual(i, factors[i]) for i in everything)
    return Explained(np.stack(factors, axis=1), residual)


class _Equations:
    """The gradients of a layer in one step against its passes.

    Small arrays, multiplied without numpy's matrix product: that would wake a second set of threads,
    beside torch's, which slow down the training.
    """

    def __init__(self, probe: Probe, gradients: Sequence[Tensor], passes: Sequence[Pass]) -> None:
        self._probe, self._passes = probe, passes
        wide = torch.float64 if gradients[0].dtype == torch.float64 else torch.float32
        self._eps = torch.finfo(wide).eps
        precisions = [torch.finfo(capture.precision) for one in passes for capture in one.captures]
        self._low = max([_LOW_SLACK * p.eps for p in precisions if p.bits < 32], default=0.0)
        self._target = probe.of_gradients(gradients)  # (rows, d_out)

    def quick(self) -> Explained | None:
        """The answer if one factor for everything fits well, as it nearly always does."""
        if not self._passes:
            return None
        total = self._passes[0].product if len(self._passes) == 1 else sum(one.product for one in self._passes)
        size = np.square(total).sum(axis=1)  # (rows,)
        if not size.all():
            return None
        fitted = float(((self._target * total).sum(axis=1) / size).mean())
        for factor in (1.0, fitted):
            gap = np.square(self._target - factor * total).sum(axis=1)
            residual = float(np.sqrt((gap / size).max())) / abs(factor)
            if residual <= _SLACK * self._eps + self._low:
                shape = len(self._passes), len(self._probe.slices)
                return Explained(np.full(shape, factor), residual)
        return None

    @cached_property
    def sound(self) -> NDArray[np.bool_]:
        """A pass with a NaN or infinite entry cannot be in a finite gradient: its factor is 0."""
        return np.array([np.isfinite(one.product).all() for one in self._passes], dtype=bool)

    @cached_property
    def targets(self) -> list[Array]:
        """Per part: (probes, d_out)."""
        return [self._target[part] for part in self._probe.slices]

    @cached_property
    def products(self) -> list[Array]:
        """Per part: (passes, probes, d_out)."""
        whole = np.zeros((len(self._passes), *self._target.shape))
        for i in np.flatnonzero(self.sound):
            whole[i] = self._passes[i].product
        return [whole[:, part] for part in self._probe.slices]

    @cached_property
    def bounds(self) -> list[Array]:
        """|E|^T (|X| |r|): what rounding is measured by, where the gradient cancels."""
        bounds = np.zeros((len(self._passes), *self._target.shape))
        for i in np.flatnonzero(self.sound):
            for capture in self._passes[i].captures:
                rows = capture.keys.unpacked(), capture.values.unpacked()
                bounds[i] += self._probe.of_rows(*rows, absolute=True)
        return [bounds[:, part] for part in self._probe.slices]

    def explained(self, part: int, factors: Array) -> bool:
        """Whether nothing is left over but rounding."""
        predicted = _weighted(factors, self.products[part])
        gap = self.targets[part] - predicted
        size = _norm(predicted)
        if _norm(gap) <= (_SLACK * self._eps + self._low) * size:
            return True  # it fits as a whole, as nearly always; no elementwise bound is needed
        rounding = _SLACK * self._eps * _weighted(np.abs(factors), self.bounds[part])
        return bool((np.abs(gap) <= rounding + self._low * size / gap.size**0.5 + _TINY).all())

    def residual(self, part: int, factors: Array) -> float:
        """What is left over, relative to the gradient; of a gradient that is only rounding: 0."""
        size = _norm(self.targets[part])
        gap = _norm(self.targets[part] - _weighted(factors, self.products[part]))
        return gap / size if gap < size else 0.0

    def candidates(self, parts: Sequence[int]) -> Iterator[Array]:
        """Factors to try, from simple to general."""
        ones = self.sound.astype(np.float64)
        yield ones
        if not self.sound.any():
            return
        # Parts are brought to one scale, so that a bias counts as much as a weight.
        scale = [_norm(self.products[i]) or 1.0 for i in parts]
        targets = np.concatenate([self.targets[i].ravel() / s for i, s in zip(parts, scale, strict=True)])
        products = np.concatenate(
            [self.products[i].reshape(len(ones), -1) / s for i, s in zip(parts, scale, strict=True)], axis=1
        )  # (passes, equations)
        together = products.sum(axis=0)
        if together.any():
            yield ones * ((together * targets).sum() / np.square(together).sum())
        matrix, right = torch.from_numpy(products.T.copy()), torch.from_numpy(targets[:, None])
        single = array(torch.linalg.lstsq(matrix, right, driver="gelsd").solution[:, 0])
        yield np.where(np.abs(single - single.round()) < 1e-2, single.round(), single)
        yield single

    def simplest(self, parts: Sequence[int]) -> Array | None:
        """The simplest factors that explain these parts together; None: there are none."""
        return next((f for f in self.candidates(parts) if all(self.explained(i, f) for i in parts)), None)


def _weighted(factors: Array, products: Array) -> Array:
    """The sum over passes, each times its factor: (probes, d_out)."""
    total: Array = (factors[:, None, None] * products).sum(axis=0)
    return total


def _norm(values: Array) -> float:
    return float(np.sqrt(np.square(values).sum()))


def _reason(parameter: str, seen: bool) -> str:
    leftover = "was it left from before the last step (zero_grad missing)"
    if seen:
        hint = f"{leftover}, clipped by value or changed by hand, or is the weight used elsewhere too?"
    else:
        hint = (
            f"no backward pass through the layer was seen: {leftover}, was the model compiled or run before "
            "recording began, or is the weight used without calling the layer?"
        )
    return (
        f"the gradient of {parameter!r} is not the sum of what went through the layer; {hint} Leave the layer "
        "out with layers=..., or change the loop. The steps before it are kept"
    )

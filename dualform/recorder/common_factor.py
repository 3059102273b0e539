"""Audit many steps at once, where it is simple: one factor for all that went through a step's layers.

Nearly every step is explained so. Steps of the same layers go into one array, a line each: a few operations serve all
of them, and between the products of a training step every operation costs several times what it would by itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.recorder.evidence import LayerEvidence

Array = NDArray[np.float64]

_TINY = float(np.finfo(np.float64).tiny)
_NEAR_ONE = 1e-3  # so near to 1 a factor may well be 1

Step = Sequence[LayerEvidence]
Shapes = tuple[tuple[int, int], ...]  # of each layer: rows, and numbers in each


class Explanation(NamedTuple):
    """A layer's factors (passes, trained uses) in one step, and the share of its gradient left over."""

    factors: Array
    residual: float
    apart: bool = False  # calls of one pass that were rounded to half precision were summed up after, not before


def explain_by_common_factor(steps: Sequence[Step]) -> dict[int, list[Explanation]]:
    """Explain each layer of those steps that one factor explains; by the place of the step."""
    alike: dict[Shapes, list[int]] = defaultdict(list)
    for place, layers in enumerate(steps):
        # every layer was passed through, and all its uses have gradients
        if layers and all(e.passes and len(e.view.stepped) == len(e.layer.probe.slices) for e in layers):
            alike[tuple(evidence.layer.probe.shape for evidence in layers)].append(place)
    explained: dict[int, list[Explanation]] = {}
    with np.errstate(all="ignore"):  # what is not finite, or nothing at all, fits nothing and is left out
        for shapes, places in alike.items():
            of_these = _explain_alike([steps[place] for place in places], shapes)
            explained |= {places[i]: explanations for i, explanations in of_these.items()}
    return explained


def _explain_alike(steps: Sequence[Step], shapes: Shapes) -> dict[int, list[Explanation]]:
    """Explain steps with the same layers."""
    rows, layers = _layout(shapes)
    every = [evidence for step in steps for evidence in step]
    of_gradients = [product.cpu() for evidence in every for product in evidence.view.products]
    of_passes = [evidence.product.reshape(-1).cpu() for evidence in every]
    target, total = as_float64(torch.cat(of_gradients + of_passes)).reshape(2, len(steps), -1)
    sizes = np.add.reduceat(np.square(total), rows, axis=1)  # (steps, rows)
    fitted: Array = (np.add.reduceat(target * total, rows, axis=1) / sizes).mean(axis=1)  # (steps,)
    # With fewer numbers than passes any scale may fit: then simpler explanations have to be tried first.
    certain = np.array([total.shape[1] > max(len(evidence.passes) for evidence in step) for step in steps])
    near = np.abs(fitted - 1) < _NEAR_ONE
    rounding = np.array([evidence.rounding for evidence in every]).reshape(len(steps), -1)
    explained: dict[int, list[Explanation]] = {}
    for factors in (np.where(certain & ~near, fitted, 1.0), np.where(certain, fitted, 1.0)):
        gaps = np.add.reduceat(np.square(target - factors[:, None] * total), rows, axis=1) / sizes
        size = np.maximum(np.abs(factors), _TINY)[:, None]
        residuals = np.sqrt(np.maximum.reduceat(gaps, layers, axis=1)) / size  # (steps, layers)
        fits = (residuals <= rounding).all(axis=1)
        for i in (i for i in np.flatnonzero(fits).tolist() if i not in explained):
            explained[i] = [
                Explanation(_repeated(factors[i], (*evidence.counted,), len(evidence.layer.probe.slices)), residual)
                for evidence, residual in zip(steps[i], residuals[i].tolist(), strict=True)
            ]
        if len(explained) == len(steps):
            break
    return explained


@lru_cache(maxsize=64)
def _repeated(factor: float, counted: tuple[bool, ...], uses: int) -> Array:
    """Return the same read-only array (passes, uses) for all layers of a step: the factor, of passes that count."""
    factors = np.where(np.array(counted)[:, None], np.full((len(counted), uses), factor), 0.0)
    factors.flags.writeable = False
    return factors


@lru_cache(maxsize=64)
def _layout(shapes: Shapes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row begins among the numbers of all layers, and where each layer among the rows."""
    lengths = [width for rows, width in shapes for _ in range(rows)]
    return np.cumsum([0, *lengths[:-1]]), np.cumsum([0, *(rows for rows, _ in shapes[:-1])])


def as_float64(small: Tensor) -> Array:
    """Return a small tensor as float64 on the CPU. numpy has no name for bfloat16, so torch widens first."""
    return (small.float() if small.dtype == torch.bfloat16 else small).cpu().numpy().astype(np.float64)

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

from dualform.recorder.evidence import FamilyEvidence, LayerEvidence, families

Array = NDArray[np.float64]

_TINY = float(np.finfo(np.float64).tiny)
_NEAR_ONE = 1e-3  # so near to 1 a factor may well be 1

Step = Sequence[FamilyEvidence]
Layouts = tuple[tuple[tuple[int, int], ...], ...]  # of each family, of each of its parameters: rows, numbers in each


class Explanation(NamedTuple):
    """A layer's factors (passes, trained uses) in one step, and the share of its gradient left over."""

    factors: Array
    residual: float
    apart: bool = False  # calls of one pass that were rounded to half precision were summed up after, not before


def explain_by_common_factor(steps: Sequence[Sequence[LayerEvidence]]) -> dict[int, list[Explanation]]:
    """Explain each layer of those steps that one factor explains; by the place of the step."""
    alike: dict[Layouts, list[tuple[int, Step]]] = defaultdict(list)
    for place, layers in enumerate(steps):
        step = families(layers)
        if step and all(family.is_complete for family in step):
            alike[tuple(family.layout for family in step)].append((place, step))
    explained: dict[int, list[Explanation]] = {}
    with np.errstate(all="ignore"):  # what is not finite, or nothing at all, fits nothing and is left out
        for layouts, of_layout in alike.items():
            for i, by_layer in _explain_alike([step for _, step in of_layout], layouts).items():
                place = of_layout[i][0]
                explained[place] = [by_layer[evidence.layer.name] for evidence in steps[place]]
    return explained


def _explain_alike(steps: Sequence[Step], layouts: Layouts) -> dict[int, dict[str, Explanation]]:
    """Explain steps with the same families, by the names of their layers."""
    rows, first_rows = _layout(layouts)
    every = [family for step in steps for family in step]
    views = [evidence.view for family in every for evidence in family.layers]
    of_gradients = [product.cpu() for view in views for product in view.products]
    of_passes = [family.product.cpu() for family in every]
    target, total = as_float64(torch.cat(of_gradients + of_passes)).reshape(2, len(steps), -1)
    sizes = np.add.reduceat(np.square(total), rows, axis=1)  # (steps, rows)
    fitted: Array = (np.add.reduceat(target * total, rows, axis=1) / sizes).mean(axis=1)  # (steps,)
    # With fewer numbers than passes any scale may fit: then simpler explanations have to be tried first.
    certain = np.array([total.shape[1] > max(family.passes for family in step) for step in steps])
    near = np.abs(fitted - 1) < _NEAR_ONE
    rounding = np.array([family.rounding for family in every]).reshape(len(steps), -1)
    explained: dict[int, dict[str, Explanation]] = {}
    for factors in (np.where(certain & ~near, fitted, 1.0), np.where(certain, fitted, 1.0)):
        gaps = np.add.reduceat(np.square(target - factors[:, None] * total), rows, axis=1) / sizes
        size = np.maximum(np.abs(factors), _TINY)[:, None]
        residuals = np.sqrt(np.maximum.reduceat(gaps, first_rows, axis=1)) / size  # (steps, families)
        fits = (residuals <= rounding).all(axis=1)
        for i in (i for i in np.flatnonzero(fits).tolist() if i not in explained):
            explained[i] = {
                evidence.layer.name: Explanation(
                    _repeated(factors[i], counted, len(evidence.layer.probe.slices)), residual
                )
                for family, residual in zip(steps[i], residuals[i].tolist(), strict=True)
                for evidence, counted in zip(family.layers, family.counted, strict=True)
            }
        if len(explained) == len(steps):
            break
    return explained


@lru_cache(maxsize=64)
def _repeated(factor: float, counted: tuple[bool, ...], uses: int) -> Array:
    """Return the same read-only array (passes, uses) for all layers of a step: the factor, of passes that count."""
    factors = np.where(np.array(counted, dtype=bool)[:, None], np.full((len(counted), uses), factor), 0.0)
    factors.flags.writeable = False
    return factors


@lru_cache(maxsize=64)
def _layout(layouts: Layouts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row begins among the numbers of all families, and where each family among the rows."""
    lengths = [width for layout in layouts for rows, width in layout for _ in range(rows)]
    counts = [sum(rows for rows, _ in layout) for layout in layouts]
    return np.cumsum([0, *lengths[:-1]]), np.cumsum([0, *counts[:-1]])


def as_float64(small: Tensor) -> Array:
    """Return a small tensor as float64 on the CPU. numpy has no name for bfloat16, so torch widens first."""
    return (small.float() if small.dtype == torch.bfloat16 else small).cpu().numpy().astype(np.float64)

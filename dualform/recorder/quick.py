"""The audit of many steps at once, where it is simple: one factor for all that went through a step's layers.

Nearly every step is explained so. Steps of the same layers go into one array, a line each: a few operations serve all
of them, and between the products of a training step every operation costs several times what it would by itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.recorder.look import Array, Explained, Look, array

_TINY = float(np.finfo(np.float64).tiny)
_NEAR = 1e-3  # of 1: then it may well be 1

Shapes = tuple[tuple[int, int], ...]  # of each layer: rows, and numbers in each


def explained_quickly(steps: Sequence[Sequence[Look]]) -> dict[int, list[Explained]]:
    """What is found of each layer, for those of the steps that one factor explains, by their place."""
    alike: dict[Shapes, list[int]] = defaultdict(list)
    for place, looks in enumerate(steps):
        # every layer was passed through, and all its parts have gradients
        if looks and all(look.passes and len(look.seen.stepped) == len(look.probe.slices) for look in looks):
            alike[tuple(look.probe.shape for look in looks)].append(place)
    found: dict[int, list[Explained]] = {}
    with np.errstate(all="ignore"):  # what is not finite, or nothing at all, fits nothing and is left out
        for shapes, places in alike.items():
            of_these = _explained([steps[place] for place in places], shapes)
            found |= {places[i]: explained for i, explained in of_these.items()}
    return found


def _explained(steps: Sequence[Sequence[Look]], shapes: Shapes) -> dict[int, list[Explained]]:
    """Of steps with the same layers."""
    rows, layers = _layout(shapes)
    looks = [look for of_step in steps for look in of_step]
    seen = [part.cpu() for look in looks for part in look.seen.parts]
    products = [look.products().reshape(-1).cpu() for look in looks]
    target, total = array(torch.cat(seen + products)).reshape(2, len(steps), -1)
    sizes = np.add.reduceat(np.square(total), rows, axis=1)  # (steps, rows)
    fitted: Array = (np.add.reduceat(target * total, rows, axis=1) / sizes).mean(axis=1)  # (steps,)
    # With fewer numbers than passes any scale may fit: then simpler explanations have to be tried first.
    certain = np.array([total.shape[1] > max(len(look.passes) for look in of_step) for of_step in steps])
    near = np.abs(fitted - 1) < _NEAR
    rounding = np.array([look.rounding for look in looks]).reshape(len(steps), -1)
    found: dict[int, list[Explained]] = {}
    for factors in (np.where(certain & ~near, fitted, 1.0), np.where(certain, fitted, 1.0)):
        gaps = np.add.reduceat(np.square(target - factors[:, None] * total), rows, axis=1) / sizes
        size = np.maximum(np.abs(factors), _TINY)[:, None]
        residuals = np.sqrt(np.maximum.reduceat(gaps, layers, axis=1)) / size  # (steps, layers)
        fits = (residuals <= rounding).all(axis=1)
        for i in (i for i in np.flatnonzero(fits).tolist() if i not in found):
            found[i] = [
                Explained(_repeated(factors[i], len(look.passes), len(look.probe.slices)), residual)
                for look, residual in zip(steps[i], residuals[i].tolist(), strict=True)
            ]
        if len(found) == len(steps):
            break
    return found


@lru_cache(maxsize=64)
def _repeated(factor: float, passes: int, parts: int) -> Array:
    """The same array for all layers of a step; not to be written to."""
    factors = np.full((passes, parts), factor)
    factors.flags.writeable = False
    return factors


@lru_cache(maxsize=64)
def _layout(shapes: Shapes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each row begins among the numbers of all layers, and where each layer among the rows."""
    lengths = [width for rows, width in shapes for _ in range(rows)]
    return np.cumsum([0, *lengths[:-1]]), np.cumsum([0, *(rows for rows, _ in shapes[:-1])])

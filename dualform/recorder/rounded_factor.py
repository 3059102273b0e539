"""Measure the factor of a step whose gradients were rounded to half precision, as under autocast.

A gradient that was rounded is off what went through its layer by the rounding, up to 0.4 % an entry in bfloat16, and so
is a factor that is fitted to it. Against the product rounded in the same way, seen through the same vectors, it is
known to float32. A few units of one layer will do: clipping and unscaling have one factor for all.
"""

from collections.abc import Sequence
from math import log2

import numpy as np
import torch
from torch import Tensor

from dualform.kinds.half_precision import call_codes, rounded_passes
from dualform.recorder.captures import Capture
from dualform.recorder.common_factor import Explanation
from dualform.recorder.evidence import LayerEvidence

_UNITS = 16  # of a layer, whose gradients are computed
_LAYERS = 3  # that are tried: what rounding did to one may not be known
_MAX_RESIDUAL = 2e-4  # of what is left over, if it is
_NEAR_POWER_OF_TWO = 1e-5  # so near to one a factor is one: it is 1, or a loss scaler's


def refined(layers: Sequence[LayerEvidence], explained: Sequence[Explanation]) -> list[Explanation]:
    """Measure the common factor of a step again, and take it where rounding explains the difference to what was fitted.

    Where rounding cannot be repeated, or passes differ, factors stay what they are.
    """
    pairs = sorted(zip(layers, explained, strict=True), key=lambda pair: _cost(pair[0]))
    for evidence, explanation in pairs[:_LAYERS]:
        factors = explanation.factors[:, 0]  # of the weight in each pass
        used = {number for number, factor in zip(evidence.passes, factors, strict=True) if factor}
        fitted = {float(factor) for factor in factors if factor}
        if len(fitted) != 1:
            continue
        measured = _measured(evidence, [evidence.passes[number].captures for number in sorted(used)])
        if measured is not None and abs(fitted.pop() / measured - 1) <= evidence.rounding:
            return [_replaced(e, x, measured) for e, x in zip(layers, explained, strict=True)]
    return list(explained)


def _replaced(evidence: LayerEvidence, explanation: Explanation, measured: float) -> Explanation:
    near = np.abs(explanation.factors / measured - 1) <= evidence.rounding
    return explanation._replace(factors=np.where(near, measured, explanation.factors))


def _cost(evidence: LayerEvidence) -> int:
    return sum(len(capture.keys.rows) for capture in evidence.captures) * evidence.layer.description.keys.width


def _measured(evidence: LayerEvidence, passes: Sequence[Sequence[Capture]]) -> float | None:
    """Return the factor of a layer's weight; None: something else was done to its gradient."""
    layer, probe = evidence.layer, evidence.layer.probe
    target = evidence.view.products[0].cpu().double().view(-1, layer.description.d_out)  # (probes, d_out)
    units = target.square().sum(dim=0).topk(min(_UNITS, target.shape[1])).indices
    gradient = sum(_rounded(evidence, captures, units) for captures in passes)
    assert isinstance(gradient, Tensor)
    seen, target = probe.of_units(0, gradient).cpu().double(), target[:, units]
    factor = float((seen * target).sum() / seen.square().sum())
    residual = float((target - factor * seen).norm() / target.norm())
    if not residual <= _MAX_RESIDUAL:  # or it is none at all
        return None
    power = round(log2(abs(factor))) if factor else 0
    nearest = 2.0**power if factor > 0 else -(2.0**power)
    return nearest if abs(factor / nearest - 1) < _NEAR_POWER_OF_TWO else factor


def _rounded(evidence: LayerEvidence, captures: Sequence[Capture], units: Tensor) -> Tensor:
    """Return the gradient of some units in one pass, as it was rounded: (units, width)."""
    described, kind = evidence.layer.description, evidence.layer.kind
    products = []
    for capture in captures:
        keys = kind.keys(described, capture.keys.unpacked()).of(described.trained[0])
        products.append(keys.outer(capture.values.unpacked()[:, units]))
    codes = call_codes(capture.precision for capture in captures)
    return torch.stack([rounded for _, rounded in rounded_passes(products, codes)]).sum(dim=0)

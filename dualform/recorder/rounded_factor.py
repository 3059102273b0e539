"""Measure the factor of a step whose gradients were rounded to half precision, as under autocast.

A gradient that was rounded is off what went through its layer by the rounding, up to 0.4 % an entry in bfloat16, and so
is a factor that is fitted to it. Against the product rounded in the same way, seen through the same vectors, it is
known to float32. A few units of one layer will do: clipping and unscaling have one factor for all.
"""

from collections.abc import Sequence
from math import copysign, log2
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualform.kinds.half_precision import call_codes, rounded_passes
from dualform.recorder.captures import Capture
from dualform.recorder.common_factor import Explanation
from dualform.recorder.evidence import LayerEvidence, families
from dualform.recorder.world import World

_UNITS = 16  # of a layer, whose gradients are computed
_LAYERS = 3  # that are tried: what rounding did to one may not be known
_MAX_RESIDUAL = 2e-4  # of what is left over, if it is
_NEAR_POWER_OF_TWO = 1e-5  # so near to one a factor is one: it is 1, or a loss scaler's


def refined(layers: Sequence[LayerEvidence], explained: Sequence[Explanation], world: World) -> list[Explanation]:
    """Measure the common factor of a step again, and take it where rounding explains the difference to what was fitted.

    Where rounding cannot be repeated, or passes differ, factors stay what they are.
    """
    pairs = list(zip(layers, explained, strict=True))
    # Nothing is measured of layers with tied parameters: which of their gradients were summed up in half precision
    # depends on what autocast has cast before. They take the factor that is measured of others.
    alone = [pair for pair in pairs if not pair[0].layer.tied]
    # An embedding's own gradient may not be rounded, while that of the head is which shares its weight.
    rounding = {evidence.layer.name: family.rounding for family in families(layers) for evidence in family.layers}
    for evidence, explanation in sorted(alone, key=lambda pair: _cost(pair[0]))[:_LAYERS]:
        fitted = {float(factor) for factor in explanation.factors[:, 0] if factor}  # of the weight, in each pass
        if len(fitted) != 1:
            continue
        measured = _best_fit(evidence, explanation, world).factor
        if measured is not None and abs(fitted.pop() / measured - 1) <= evidence.rounding:
            pairs = [(e, _replaced(x, measured, rounding[e.layer.name])) for e, x in pairs]
            break
    return [
        x._replace(apart=_best_fit(e, x, world).apart) if _has_calls(e) and not e.layer.tied else x for e, x in pairs
    ]


def _cost(evidence: LayerEvidence) -> int:
    return sum(capture.slots for capture in evidence.captures) * evidence.layer.description.d_in


def _replaced(explanation: Explanation, measured: float, rounding: float) -> Explanation:
    near = np.abs(explanation.factors / measured - 1) <= rounding
    return explanation._replace(factors=np.where(near, measured, explanation.factors))


def _has_calls(evidence: LayerEvidence) -> bool:
    """Return whether a pass has several calls, which may or may not have been summed up in half precision."""
    return evidence.half_rounding > 0 and any(len(of_pass.captures) > 1 for of_pass in evidence.passes.values())


class _Fit(NamedTuple):
    """A layer's gradient against what went through it, rounded in one way."""

    residual: float  # what is left over, of the gradient's size
    apart: bool
    scale: float

    @property
    def factor(self) -> float | None:
        """The factor; None: something else was done to the gradient."""
        if not self.residual <= _MAX_RESIDUAL:  # or it is none at all
            return None
        nearest = copysign(2.0 ** round(log2(abs(self.scale))), self.scale)
        return nearest if abs(self.scale / nearest - 1) < _NEAR_POWER_OF_TWO else self.scale


def _best_fit(evidence: LayerEvidence, explanation: Explanation, world: World) -> _Fit:
    """Round what went through a layer once more, with calls summed up in half precision, or each by itself."""
    fits = [
        _fit(evidence, explanation, apart, world) for apart in ((False, True) if _has_calls(evidence) else (False,))
    ]
    return min(fits, key=lambda fit: fit.residual)


def _fit(evidence: LayerEvidence, explanation: Explanation, apart: bool, world: World) -> _Fit:
    layer, factors = evidence.layer, explanation.factors[:, 0]
    target = evidence.view.products[0].cpu().double().view(-1, layer.description.d_out)  # (probes, d_out)
    # outputs that see entries of their own have to be there all
    some = _UNITS if layer.description.trained[0].groups == 1 else target.shape[1]
    units = target.square().sum(dim=0).topk(min(some, target.shape[1])).indices.sort().values
    used = [of_pass for of_pass, factor in zip(evidence.passes.values(), factors, strict=True) if factor]
    gradient = torch.zeros(len(units), layer.description.trained[0].width, dtype=torch.float64)
    for calls in ([c for c in of_pass.captures if isinstance(c, Capture)] for of_pass in used):
        gradient = gradient + _rounded(evidence, calls, units, apart) if calls else gradient  # or another process's
    gradient = torch.from_numpy(world.mean(gradient.numpy()))
    seen, target = layer.probe.of_units(0, gradient).cpu().double(), target[:, units]
    scale = float((seen * target).sum() / seen.square().sum())
    return _Fit(float((target - scale * seen).norm() / target.norm()), apart, scale)


def _rounded(evidence: LayerEvidence, captures: Sequence[Capture], units: Tensor, apart: bool) -> Tensor:
    """Return the gradient of some units in one pass, as it was rounded: (units, width)."""
    described, kind = evidence.layer.description, evidence.layer.kind
    products = []
    for capture in captures:
        rows, values = capture.unpacked(evidence.layer)
        products.append(kind.keys(described, rows).of(described.trained[0]).outer(values)[units])
    codes = call_codes((capture.precision for capture in captures), apart=apart)
    return torch.stack([rounded for _, rounded in rounded_passes(products, codes)]).sum(dim=0)

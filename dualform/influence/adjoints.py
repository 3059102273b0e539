"""The exact adjoint of an optimiser's step: of weights and state after it, to weights, state and gradient before it.

    before, of_gradient = step_back(rule, line, state, gradient, after)

Linear optimisers are followed by the numbers of their Step. Of Adam and AdamW the second moment depends on the
gradient, too: their step is written once more here, as a function that can be differentiated. Adjoints come in batches:
(tests, *shape) each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from dualform.algebra import Line, Rule
from dualform.errors import NotRecorded

_MEAN, _SQUARE = "exp_avg", "exp_avg_sq"
_TINY = 1e-30  # below which a running square is 0, and its root has no slope


@dataclass
class StateAdjoint:
    """What outputs gain by a parameter, and by the two tensors an optimiser may keep of it: (tests, *shape)."""

    weight: Tensor
    momentum: Tensor
    square: Tensor

    @classmethod
    def of(cls, gradient: Tensor) -> "StateAdjoint":
        """Begin at the end of a training, where outputs depend on weights alone."""
        return cls(gradient, torch.zeros_like(gradient), torch.zeros_like(gradient))


def check_followed(kind: str, rule: Rule) -> None:
    """Raise unless an optimiser's step can be followed back exactly."""
    if rule.matrices:
        raise NotRecorded("exact influence does not follow Muon: use method='fast', or memory.retrain")
    if rule.moments and kind not in ("Adam", "AdamW"):
        raise NotRecorded(f"exact influence follows SGD and its kin, Adam and AdamW, not {kind}: use method='fast'")


def step_back(
    rule: Rule, line: Line, state: Mapping[str, Any], weight: Tensor, gradient: Tensor, after: StateAdjoint
) -> tuple[StateAdjoint, Tensor]:
    """Return the adjoint of weights and state before a step, and of the gradient it was taken with."""
    if not rule.moments:
        step = rule.step(line, {})
        keep, carry, intake = float(step.keep), float(step.carry), float(step.intake)
        momentum = after.momentum - float(step.beta) * after.weight
        of_signed = intake * momentum - float(step.alpha) * after.weight
        before = StateAdjoint(keep * after.weight + float(step.decay) * of_signed, carry * momentum, after.square)
        return before, float(step.sign) * of_signed
    if line["amsgrad"]:
        raise NotRecorded("exact influence does not follow amsgrad: use method='fast'")
    zero = torch.zeros_like(weight)
    point = (weight, state.get(_MEAN, zero), state.get(_SQUARE, zero), gradient)

    def take(weight: Tensor, mean: Tensor, square: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _adam(line, weight, mean, square, gradient)

    back: Any = vjp(take, *point)[1]
    adjoints = vmap(back)((after.weight, after.momentum, after.square))
    of_weight, of_mean, of_square, of_gradient = adjoints
    return StateAdjoint(of_weight, of_mean, of_square), of_gradient


def _adam(line: Line, weight: Tensor, mean: Tensor, square: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take one step of Adam or AdamW."""
    steps, decay, rate = line["count"] + 1, line["weight_decay"], line["lr"]
    decoupled = bool(line["decoupled_weight_decay"])
    g = -gradient if line["maximize"] else gradient
    g = g if decoupled or not decay else g + decay * weight
    kept = weight * (1 - rate * decay) if decoupled else weight
    mean = line["beta1"] * mean + (1 - line["beta1"]) * g
    square = line["beta2"] * square + (1 - line["beta2"]) * g * g
    root = square.clamp(min=_TINY).sqrt() / (1 - line["beta2"] ** steps) ** 0.5
    return kept - rate / (1 - line["beta1"] ** steps) * mean / (root + line["eps"]), mean, square


def clip_back(gradients: Mapping[str, Tensor], limit: float, of_clipped: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the adjoint of gradients before they were clipped to a norm, all together, given that after it."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    factor = limit / (norm + 1e-6)
    if factor >= 1:
        return dict(of_clipped)
    along = torch.stack([of.flatten(1) @ gradients[name].flatten() for name, of in of_clipped.items()]).sum(dim=0)
    lost = factor / ((norm + 1e-6) * norm) * along  # (tests,)
    return {  # of those, too, that are in the norm only
        name: factor * of_clipped.get(name, 0.0) - lost.reshape(-1, *[1] * gradient.dim()) * gradient
        for name, gradient in gradients.items()
    }

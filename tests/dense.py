"""The naive reference: one gradient per example by autograd, one dense matrix per example, float64.

It knows nothing of keys, values, hooks or coefficients. It follows torch.optim.SGD's documented update on
a weight that is split into pieces, the initial one and one per tag value; each piece gets the gradient of
its own examples. SGD is linear, so the pieces add up to the real weight, and each is what `where` means.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

INITIAL = "initial"


@dataclass
class Piece:
    weight: Tensor
    momentum: Tensor


@dataclass
class DenseSGD:
    """Follows every parameter of a model, split into pieces."""

    model: nn.Module
    pieces: dict[str, dict[Any, Piece]] = field(default_factory=dict)
    has_momentum: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, parameter in self.model.named_parameters():
            value = parameter.detach().clone()
            self.pieces[name] = {INITIAL: Piece(value, torch.zeros_like(value))}
            self.has_momentum[name] = False

    def start_warm(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the momentum an optimiser already has."""
        for name, parameter in self.model.named_parameters():
            buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
            self.pieces[name][INITIAL].weight = parameter.detach().clone()
            if buffer is not None:
                self.pieces[name][INITIAL].momentum = buffer.clone()
                self.has_momentum[name] = True

    def step(self, gradients: dict[str, dict[Any, Tensor]], groups: dict[str, dict[str, Any]]) -> None:
        """One step, given each parameter's gradient per tag value; a parameter not in `gradients` is skipped."""
        for name, by_tag in gradients.items():
            group, pieces = groups[name], self.pieces[name]
            for tag in by_tag:
                zero = torch.zeros_like(pieces[INITIAL].weight)
                pieces.setdefault(tag, Piece(zero.clone(), zero.clone()))
            for tag, piece in pieces.items():
                gradient = by_tag.get(tag, torch.zeros_like(piece.weight))
                _sgd(piece, -gradient if group["maximize"] else gradient, group, self.has_momentum[name])
            self.has_momentum[name] |= group["momentum"] != 0

    def weight(self, name: str, tag: Any = None) -> Tensor:
        """The whole parameter, or the initial piece with one tag's."""
        pieces = self.pieces[name]
        chosen = pieces.values() if tag is None else [pieces[INITIAL], *([pieces[tag]] if tag in pieces else [])]
        return torch.stack([piece.weight for piece in chosen]).sum(dim=0)


def _sgd(piece: Piece, gradient: Tensor, group: dict[str, Any], has_momentum: bool) -> None:
    gradient = gradient + group["weight_decay"] * piece.weight
    if group["momentum"] != 0:
        if has_momentum:
            piece.momentum = group["momentum"] * piece.momentum + (1 - group["dampening"]) * gradient
        else:
            piece.momentum = gradient
        gradient = gradient + group["momentum"] * piece.momentum if group["nesterov"] else piece.momentum
    piece.weight = piece.weight - group["lr"] * gradient


def example_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, tags: list[Any], scale: float
) -> dict[str, dict[Any, Tensor]]:
    """The gradient of each example's share of the mean loss, times `scale`, summed per tag."""
    gradients: dict[str, dict[Any, Tensor]] = defaultdict(dict)
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    for row, target, tag in zip(inputs, targets, tags, strict=True):
        loss = nn.functional.cross_entropy(model(row[None]), target[None]) / len(inputs)
        for name, gradient in zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                before = gradients[name].get(tag, torch.zeros_like(gradient))
                gradients[name][tag] = before + scale * gradient
    return gradients

"""The naive reference: one gradient per example by autograd, one dense matrix per example, float64.

It knows nothing of keys, values, hooks or coefficients. It follows the documented updates of torch's
optimisers on a weight that is split into pieces, the initial one and one per tag value; each piece gets the
gradient of its own examples. What an optimiser divides by is that of the whole weight, for all pieces. Then an
update is linear, so the pieces add up to the real weight, and each is what `where` means.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim._muon import _zeropower_via_newtonschulz

INITIAL = "initial"
Group = dict[str, Any]


@dataclass
class Piece:
    weight: Tensor
    momentum: Tensor


Move = Callable[[Piece, Tensor], None]  # a piece by its own signed and decayed gradient


@dataclass
class Whole:
    """What the optimiser holds for a parameter as one."""

    square: Tensor
    largest: Tensor
    mean: Tensor
    count: int = 0
    has_momentum: bool = False
    mu_product: float = 1.0
    weight: Tensor | None = None  # itself
    in_no_piece: Tensor | float = 0.0  # what a step took besides
    mean_and_gradient: tuple[Tensor, Tensor] | None = None  # the terms of what is divided by its size
    entries: dict[str, Tensor] = field(default_factory=dict)  # of torch's state, by their names

    def entry(self, name: str, otherwise: Tensor) -> Tensor:
        return self.entries.setdefault(name, otherwise)


@dataclass
class Dense:
    """Follows every parameter of a model, split into pieces."""

    model: nn.Module
    kind: str = "SGD"
    pieces: dict[str, dict[Any, Piece]] = field(default_factory=dict)
    whole: dict[str, Whole] = field(default_factory=dict)
    condition: float = 1.0  # the least that any entry of a gradient was of the sizes it is the sum of

    def __post_init__(self) -> None:
        for name, parameter in self.model.named_parameters():
            value = parameter.detach().clone()
            self.pieces[name] = {INITIAL: Piece(value, torch.zeros_like(value))}
            self.whole[name] = Whole(torch.zeros_like(value), torch.zeros_like(value), torch.zeros_like(value))

    def start_warm(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the state an optimiser already has."""
        for name, parameter in self.model.named_parameters():
            state, whole, piece = optimizer.state.get(parameter, {}), self.whole[name], self.pieces[name][INITIAL]
            piece.weight = parameter.detach().clone()
            for entry in ("momentum_buffer", "exp_avg", "mean"):
                if state.get(entry) is not None:
                    piece.momentum, whole.has_momentum = state[entry].clone(), True
            for entry, ours in {
                "exp_avg_sq": "square", "square_avg": "square", "sum": "square", "max_exp_avg_sq": "largest",
                "grad_avg": "mean",
            }.items():  # fmt: skip
                if entry in state:
                    setattr(whole, ours, state[entry].clone())
            whole.entries = {entry: value.clone() for entry, value in state.items() if isinstance(value, Tensor)}
            whole.count, whole.mu_product = int(state.get("step", 0)), float(state.get("mu_product", 1.0))

    def step(self, gradients: dict[str, dict[Any, Tensor]], groups: dict[str, Group]) -> None:
        """One step, given each parameter's gradient per tag value; a parameter not in `gradients` is skipped."""
        for name, by_tag in gradients.items():
            group, pieces = groups[name], self.pieces[name]
            decoupled = self.kind in ("AdamW", "Adafactor", "Lion", "Muon") or group.get(
                "decoupled_weight_decay", False
            )
            coupled = not decoupled and self.kind != "Rprop"  # which has no decay
            sign, decay = -1.0 if group.get("maximize") else 1.0, group["weight_decay"] if coupled else 0.0
            zero = torch.zeros_like(pieces[INITIAL].weight)
            for tag in by_tag:
                pieces.setdefault(tag, Piece(zero.clone(), zero.clone()))
            total = sum(by_tag.values(), zero)
            self._note_condition(total, sum((gradient.abs() for gradient in by_tag.values()), zero))
            self.whole[name].weight = self.weight(name)
            move = _UPDATES[self.kind](group, self.whole[name], sign * total + decay * self.weight(name))
            if (mixed := self.whole[name].mean_and_gradient) is not None:
                terms = torch.stack(mixed)
                self._note_condition(terms.sum(dim=0), terms.abs().sum(dim=0))
            for tag, piece in pieces.items():
                g = sign * by_tag.get(tag, zero) + decay * piece.weight
                if decoupled:
                    piece.weight = piece.weight * (1 - group["lr"] * group["weight_decay"])
                move(piece, g)
            pieces[INITIAL].weight = pieces[INITIAL].weight - self.whole[name].in_no_piece

    def _note_condition(self, gradient: Tensor, sizes: Tensor) -> None:
        there = sizes > 0
        if there.any():
            self.condition = min(self.condition, float((gradient.abs()[there] / sizes[there]).min()))

    def weight(self, name: str, tags: Collection[Any] | None = None) -> Tensor:
        """The whole parameter, or the initial piece with those of some tags."""
        pieces = self.pieces[name]
        chosen = [piece for tag, piece in pieces.items() if tags is None or tag == INITIAL or tag in tags]
        return torch.stack([piece.weight for piece in chosen]).sum(dim=0)


def _sgd(group: Group, whole: Whole, g: Tensor) -> Move:
    fresh, momentum = not whole.has_momentum, group["momentum"]
    whole.has_momentum |= momentum != 0

    def move(piece: Piece, g: Tensor) -> None:
        if momentum != 0:
            piece.momentum = g if fresh else momentum * piece.momentum + (1 - group["dampening"]) * g
            g = g + momentum * piece.momentum if group["nesterov"] else piece.momentum
        piece.weight = piece.weight - group["lr"] * g

    return move


def _second_moment(group: Group, whole: Whole, g: Tensor) -> Tensor:
    """Of the whole, one step on and corrected for its start at zero."""
    beta2 = group["betas"][1]
    whole.count += 1
    whole.square = beta2 * whole.square + (1 - beta2) * g**2
    whole.largest = torch.maximum(whole.largest, whole.square)
    counted = whole.largest if group.get("amsgrad") else whole.square
    return counted / float(1 - beta2**whole.count)


def _adam(group: Group, whole: Whole, g: Tensor) -> Move:
    divisor = _second_moment(group, whole, g).sqrt() + group["eps"]
    beta1 = group["betas"][0]
    lr = group["lr"] / (1 - beta1**whole.count)

    def move(piece: Piece, g: Tensor) -> None:
        piece.momentum = beta1 * piece.momentum + (1 - beta1) * g
        piece.weight = piece.weight - lr * piece.momentum / divisor

    return move


def _nadam(group: Group, whole: Whole, g: Tensor) -> Move:
    divisor = _second_moment(group, whole, g).sqrt() + group["eps"]
    beta1, lr = group["betas"][0], group["lr"]
    now, then = (beta1 * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (whole.count, whole.count + 1))
    whole.mu_product = float(np.float32(whole.mu_product) * np.float32(now))

    def move(piece: Piece, g: Tensor) -> None:
        piece.momentum = beta1 * piece.momentum + (1 - beta1) * g
        ahead = then / (1 - whole.mu_product * then) * piece.momentum
        piece.weight = piece.weight - lr * ((1 - now) / (1 - whole.mu_product) * g + ahead) / divisor

    return move


def _radam(group: Group, whole: Whole, g: Tensor) -> Move:
    second = _second_moment(group, whole, g)
    (beta1, beta2), t = group["betas"], whole.count
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
    scale: Tensor | float = 1.0
    if rho > 5:
        rectified = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        correction = (1 - beta2**t) ** 0.5
        scale = rectified * correction / ((second * (1 - beta2**t)).sqrt() + group["eps"])

    def move(piece: Piece, g: Tensor) -> None:
        piece.momentum = beta1 * piece.momentum + (1 - beta1) * g
        piece.weight = piece.weight - group["lr"] * scale * piece.momentum / (1 - beta1**t)

    return move


def _rmsprop(group: Group, whole: Whole, g: Tensor) -> Move:
    share = group["alpha"]
    whole.square = share * whole.square + (1 - share) * g**2
    whole.mean = share * whole.mean + (1 - share) * g
    divisor = (whole.square - whole.mean**2 if group["centered"] else whole.square).sqrt() + group["eps"]

    def move(piece: Piece, g: Tensor) -> None:
        if group["momentum"] > 0:
            piece.momentum = group["momentum"] * piece.momentum + g / divisor
        piece.weight = piece.weight - group["lr"] * (piece.momentum if group["momentum"] > 0 else g / divisor)

    return move


def _adagrad(group: Group, whole: Whole, g: Tensor) -> Move:
    whole.count += 1
    whole.square = whole.square + g**2
    lr = group["lr"] / (1 + (whole.count - 1) * group["lr_decay"])
    divisor = whole.square.sqrt() + group["eps"]

    def move(piece: Piece, g: Tensor) -> None:
        piece.weight = piece.weight - lr * g / divisor

    return move


def _adadelta(group: Group, whole: Whole, g: Tensor) -> Move:
    rho, eps, updates = group["rho"], group["eps"], whole.entry("acc_delta", torch.zeros_like(g))
    whole.square = rho * whole.square + (1 - rho) * g**2
    rate = (updates + eps).sqrt() / (whole.square + eps).sqrt()
    whole.entries["acc_delta"] = rho * updates + (1 - rho) * (rate * g) ** 2

    def move(piece: Piece, g: Tensor) -> None:
        piece.weight = piece.weight - group["lr"] * rate * g

    return move


def _adamax(group: Group, whole: Whole, g: Tensor) -> Move:
    (beta1, beta2), largest = group["betas"], whole.entry("exp_inf", torch.zeros_like(g))
    whole.count += 1
    divisor = whole.entries["exp_inf"] = torch.maximum(beta2 * largest, g.abs() + group["eps"])

    def move(piece: Piece, g: Tensor) -> None:
        piece.momentum = beta1 * piece.momentum + (1 - beta1) * g
        piece.weight = piece.weight - group["lr"] / (1 - beta1**whole.count) * piece.momentum / divisor

    return move


def _rprop(group: Group, whole: Whole, g: Tensor) -> Move:
    size = whole.entry("step_size", torch.full_like(g, group["lr"]))
    agreement = (g * whole.entry("prev", torch.zeros_like(g))).sign()
    shrink, grow = group["etas"]
    size = torch.where(agreement > 0, grow * size, torch.where(agreement < 0, shrink * size, size))
    size = whole.entries["step_size"] = size.clamp(*group["step_sizes"])
    seen = whole.entries["prev"] = torch.where(agreement < 0, 0.0, g)

    def move(piece: Piece, g: Tensor) -> None:
        piece.weight = piece.weight - torch.where(seen == 0, 0.0, size * g / seen.abs())

    return move


def _asgd(group: Group, whole: Whole, g: Tensor) -> Move:
    whole.count += 1
    lr, lambd = group["lr"], group["lambd"]
    eta = float(whole.entry("eta", torch.tensor(lr)))
    whole.entries["eta"] = torch.tensor(lr / (1 + lambd * lr * whole.count) ** group["alpha"])

    def move(piece: Piece, g: Tensor) -> None:
        piece.weight = piece.weight * (1 - lambd * eta) - eta * g

    return move


def _adafactor(group: Group, whole: Whole, g: Tensor) -> Move:
    whole.count += 1
    assert whole.weight is not None
    share, (eps1, eps2) = whole.count ** group["beta2_decay"], group["eps"]
    eps1 = torch.finfo(g.dtype).eps if eps1 is None else eps1
    if g.dim() == 1:
        variance = whole.entry("variance", torch.zeros_like(g))
        second = whole.entries["variance"] = (1 - share) * variance + share * g**2
    else:
        rows, columns = (
            whole.entry(n, torch.zeros_like((g**2).mean(d, True))) for n, d in (("row_var", -1), ("col_var", -2))
        )
        rows = whole.entries["row_var"] = (1 - share) * rows + share * (g**2).mean(-1, True)
        columns = whole.entries["col_var"] = (1 - share) * columns + share * (g**2).mean(-2, True)
        second = rows * columns / rows.mean(-2, True).clamp(min=eps1)
    divisor = second.clamp(min=eps1**2).sqrt()
    size = max(eps2, float((whole.weight**2).mean().sqrt())) * min(group["lr"], whole.count**-0.5)
    size /= max(1.0, float(((g / divisor) ** 2).mean().sqrt()) / group["d"])

    def move(piece: Piece, g: Tensor) -> None:
        piece.weight = piece.weight - size * g / divisor

    return move


def _lion(group: Group, whole: Whole, g: Tensor) -> Move:
    (beta1, beta2), mean = group["betas"], whole.entry("mean", torch.zeros_like(g))
    whole.mean_and_gradient = beta1 * mean, (1 - beta1) * g
    update = beta1 * mean + (1 - beta1) * g
    whole.entries["mean"] = beta2 * mean + (1 - beta2) * g

    def move(piece: Piece, g: Tensor) -> None:
        own = beta1 * piece.momentum + (1 - beta1) * g
        piece.momentum = beta2 * piece.momentum + (1 - beta2) * g
        piece.weight = piece.weight - torch.where(update == 0, 0.0, group["lr"] * own / update.abs())

    return move


def _muon(group: Group, whole: Whole, g: Tensor) -> Move:
    """What torch takes is a matrix times the update but for the rounding of bfloat16, which is due to nobody."""
    mu, mean = group["momentum"], whole.entry("momentum_buffer", torch.zeros_like(g))
    mean = whole.entries["momentum_buffer"] = mu * mean + (1 - mu) * g
    update = (1 - mu) * g + mu * mean if group["nesterov"] else mean
    a, b, c = group["ns_coefficients"]
    norm = update.norm().clamp(min=group["eps"])
    left, sizes, right = torch.linalg.svd(update / norm, full_matrices=False)
    after, factors = sizes, torch.ones_like(sizes) / norm  # one by one: a size may be 0
    for _ in range(group["ns_steps"]):
        factor = a + b * after**2 + c * after**4
        after, factors = after * factor, factors * factor
    rows, columns = g.shape
    matched = group["adjust_lr_fn"] == "match_rms_adamw"
    size = group["lr"] * (0.2 * max(rows, columns) ** 0.5 if matched else max(1.0, rows / columns) ** 0.5)
    side = left if rows <= columns else right.T
    matrix = side @ torch.diag(factors) @ side.T
    arguments = (group["ns_coefficients"], group["ns_steps"], group["eps"])
    whole.in_no_piece = size * (_zeropower_via_newtonschulz(update, *arguments) - (left * after) @ right)

    def move(piece: Piece, g: Tensor) -> None:
        piece.momentum = mu * piece.momentum + (1 - mu) * g
        own = (1 - mu) * g + mu * piece.momentum if group["nesterov"] else piece.momentum
        piece.weight = piece.weight - size * (matrix @ own if rows <= columns else own @ matrix)

    return move


_UPDATES: dict[str, Callable[[Group, Whole, Tensor], Move]] = {
    "SGD": _sgd, "Adam": _adam, "AdamW": _adam, "NAdam": _nadam, "RAdam": _radam, "RMSprop": _rmsprop,
    "Adagrad": _adagrad, "Adadelta": _adadelta, "Adamax": _adamax, "Rprop": _rprop, "ASGD": _asgd,
    "Adafactor": _adafactor, "Lion": _lion, "Muon": _muon,
}  # fmt: skip


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

"""What an estimate from a recording should be, by dense matrices in float64: a naive training that keeps everything.

    reference = Reference(model, inputs, targets, steps)      # trains the model
    reference.scores(tests, classes)                           # (tests, visits)

The adjoint of each layer is a matrix for each test, (tests, d_out, width), with the bias as the last column.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 0.3


class Layer:
    """A linear layer: its keys and errors, of each step, and what its optimiser did."""

    def __init__(self, module: nn.Linear) -> None:
        self.module = module
        self.keys: list[Tensor] = []  # (rows, width)
        self.errors: list[Tensor] = []
        self.lines: list[Any] = []

    def hook(self, keys: list[Tensor], errors: list[Tensor]) -> Any:
        def on_forward(module: nn.Module, args: Any, output: Tensor) -> None:
            rows = args[0].detach().reshape(-1, args[0].shape[-1])
            keys.append(torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], dim=1))
            output.register_hook(lambda error: errors.append(error.detach().reshape(-1, error.shape[-1])))

        return self.module.register_forward_hook(on_forward)


class Reference:
    """A training of nn.Linear layers, of which each has as many rows of a visit."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: list[tuple[Any, Tensor]],
        clip: float = 1e9,
        losses: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    ) -> None:
        self.model, self.optimizer, self.clip, self.losses = model, optimizer, clip, losses
        self.layers = [Layer(module) for module in model.modules() if isinstance(module, nn.Linear)]
        self.curvatures: list[Tensor] = []  # n F of each visit
        self.factors: list[Tensor] = []  # of each step, that clipping has left
        for inputs, targets in batches:
            self.step(inputs, targets)

    def step(self, inputs: Any, targets: Tensor) -> None:
        handles = [layer.hook(layer.keys, layer.errors) for layer in self.layers]
        logits = self.model(inputs)
        self.losses(logits, targets).backward()
        for handle in handles:
            handle.remove()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.factors.append((self.clip / (norm + 1e-6)).clamp(max=1))
        p = logits.detach().softmax(1)
        counted = targets >= 0  # the others are left out of the mean
        u = (p - F.one_hot(targets.clamp(min=0), p.shape[1])) * counted[:, None]
        curved = torch.stack([x @ (torch.diag(y) - torch.outer(y, y)) @ x for x, y in zip(u, p, strict=True)])
        self.curvatures.append(torch.where(counted, counted.sum() * curved / u.square().sum(1) ** 2, 0.0))
        (group,) = self.optimizer.param_groups
        for layer in self.layers:
            fresh = not self.optimizer.state.get(layer.module.weight)
            layer.lines.append({**group, "fresh": fresh})
        self.optimizer.step()
        for layer in self.layers if "betas" in group else ():
            layer.lines[-1]["by"] = self._factored(layer.module, group)
        self.optimizer.zero_grad()

    def _factored(self, module: nn.Linear, group: Any) -> Tensor:
        """lr / (sqrt(v) + eps), with corrections, as a product of a factor a row and one a column."""
        states = [self.optimizer.state[p] for p in (module.weight, module.bias)]
        count, (beta1, beta2) = float(states[0]["step"]), group["betas"]
        v = torch.cat([states[0]["exp_avg_sq"], states[1]["exp_avg_sq"][:, None]], dim=1)
        size = group["lr"] / (1 - beta1**count)
        squares = (size / ((v / (1 - beta2**count)).sqrt() + group["eps"])) ** -2
        factored: Tensor = (squares.mean(1, keepdim=True) * squares.mean(0) / squares.mean()) ** -0.5
        return factored

    def queries(self, tests: Any, measure: Callable[[Tensor], Tensor]) -> dict[Layer, tuple[Tensor, Tensor]]:
        """Queries and directions of each layer, of all tests: (rows, ...)."""
        caught: dict[Layer, tuple[list[Tensor], list[Tensor]]] = {layer: ([], []) for layer in self.layers}
        handles = [layer.hook(*caught[layer]) for layer in self.layers]
        measure(self.model(tests)).sum().backward()
        for handle in handles:
            handle.remove()
        return {layer: (keys[0], errors[0]) for layer, (keys, errors) in caught.items()}

    def scores(self, tests: Any, measure: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """The adjoint's, the whitened ones, and both together: (tests, visits)."""
        adjoints, white = dict[Layer, Any](), dict[Layer, Any]()
        for layer, (q, g) in self.queries(tests, measure).items():
            x = torch.cat(layer.keys)
            second = x.T @ x / len(x)
            damped = second + EPS * second.trace() / len(second) * torch.eye(len(second), dtype=x.dtype)
            for one, queries in (adjoints, q), (white, q @ damped.inverse()):
                matrices = torch.einsum("no,nw->now", g, queries)
                rows = len(matrices) // count
                one[layer] = [matrices.view(count, rows, *matrices.shape[1:]).sum(1), 0.0]
        near, whitened = list[Tensor](), list[Tensor]()
        for step in reversed(range(len(self.curvatures))):
            visits = len(self.curvatures[step])
            sums = [torch.zeros(count, visits, dtype=torch.float64) for _ in range(2)]
            for layer in self.layers:
                e, x = layer.errors[step], layer.keys[step]
                for total, one in zip(sums, (adjoints, white), strict=True):
                    gradient = self._back(one[layer], layer.lines[step])
                    total += self.factors[step] * torch.einsum("tow,no,nw->tn", gradient, e, x).view(
                        count, visits, -1
                    ).sum(2)
            for layer in self.layers:
                e, x = layer.errors[step], layer.keys[step]
                curved = (self.curvatures[step] * sums[0]).repeat_interleave(len(x) // visits, dim=1)
                adjoints[layer][0] = adjoints[layer][0] + torch.einsum("tn,no,nw->tow", curved, e, x)
            near.append(sums[0])
            whitened.append(sums[1])
        return torch.stack([torch.cat(near[::-1], 1), torch.cat(whitened[::-1], 1)])

    def _back(self, adjoint: Any, line: Any) -> Tensor:
        """Take (weight, momentum) back through one step; return the adjoint of the gradient."""
        weight, momentum = adjoint
        if "betas" in line:
            by, beta1 = line["by"], line["betas"][0]
            momentum = momentum - weight
            gradient = (1 - beta1) * momentum
            decoupled = line.get("decoupled_weight_decay", False)
            kept = 1 - line["lr"] * line["weight_decay"] * decoupled
            adjoint[0] = weight * kept + line["weight_decay"] * (not decoupled) * gradient * by
            adjoint[1] = beta1 * momentum
            return gradient * by  # type: ignore[no-any-return]
        lr, mu, sign = line["lr"], line["momentum"], -1.0 if line["maximize"] else 1.0
        through = momentum - (lr * mu if line["nesterov"] else lr) * weight if mu else momentum
        intake = (1.0 if line["fresh"] else 1 - line["dampening"]) * (mu > 0)
        gradient = intake * through - (lr * weight if line["nesterov"] or not mu else 0.0)
        adjoint[0] = weight + line["weight_decay"] * gradient
        adjoint[1] = (0.0 if line["fresh"] else mu) * through
        return sign * gradient  # type: ignore[no-any-return]


def together(both: Tensor, ids: Tensor) -> Tensor:
    """The mean of both estimates, the second in the unit of the first: sizes are those over examples."""
    of_examples = torch.zeros(*both.shape[:2], int(ids.max()) + 1, dtype=both.dtype).index_add_(2, ids, both)
    of_examples = of_examples[:, :, ids.unique()]
    near, white = of_examples.square().mean(2, keepdim=True).sqrt()
    mean: Tensor = (both[0] + both[1] * near / white) / 2
    return mean

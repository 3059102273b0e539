"""Lion, as docs/guides/optimisers.md shows it: an optimiser that is not torch's, registered from outside."""
# mypy: disable-error-code=no-untyped-def

import torch

from dualform.algebra import Rule, Step, of_sign, register


class Lion(torch.optim.Optimizer):
    """W' = (1 - lr decay) W - lr sign(u),   u = beta1 m + (1 - beta1) g,   m' = beta2 m + (1 - beta2) g"""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                update = mean * beta1 + parameter.grad * (1 - beta1)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.sign(), alpha=group["lr"])
                mean.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


def read(group, state):
    """Fill a ledger line, just before a step."""
    return (group["lr"], *group["betas"], group["weight_decay"])


def advance(line, gradient, moments):
    """Take the replayed mean one step on, by Lion's own operations; hand the update on to `step`."""
    mean = moments.get("mean", torch.zeros_like(gradient))
    update = mean * line["beta1"] + gradient * (1 - line["beta1"])
    return {"mean": (mean * line["beta2"]).add_(gradient, alpha=1 - line["beta2"]), "update": update}


def step(line, moments):
    """The update is a sum of the new mean and the gradient, c m' + (1 - c) g, and its sign is u / |u|."""
    c = line["beta1"] / line["beta2"]
    scale = of_sign(line["lr"], moments["update"])  # lr / |u|, and 0 where u is 0
    keep = 1 - line["lr"] * line["weight_decay"]
    return Step(carry=line["beta2"], intake=1 - line["beta2"], keep=float(keep), alpha=scale * (1 - c), beta=scale * c)


RULE = Rule(
    columns=("lr", "beta1", "beta2", "weight_decay"),
    read=read,
    step=step,
    momentum="mean",  # the entry of its state that is m
    moments=("mean",),  # what has to be replayed, since coefficients depend on it
    advance=advance,
)
register(Lion, RULE)

"""Each optimiser's rule against torch's own steps: the adjoint, unrolled, arrives at torch's weights."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import Optimizer

from dualform.algebra import RULES, Adjoint, Line, Step
from tests.optimizers import OPTIONS, make, options, rule_of

SHAPE = (3, 2)
EACH = settings(max_examples=settings().max_examples // 4)  # of every optimiser
seeds = st.integers(0, 2**16)


class Followed:
    """A parameter stepped by torch, and what the rule makes of the same steps."""

    def __init__(self, name: str, parameter: Tensor, optimizer: Optimizer) -> None:
        self._name, self._parameter, self._optimizer = name, parameter, optimizer
        self._rule = rule_of(name)
        rule = self._rule
        state = optimizer.state.get(parameter, {})
        self.first = parameter.detach().clone()
        self.momentum = state.get(rule.momentum, torch.zeros(SHAPE)).clone()
        self._moments = {name: state[name].clone() for name in rule.moments if name in state}
        self.gradients: list[Tensor] = []
        self.steps: list[Step] = []
        self.remainders: list[Tensor] = []

    def step(self, gradient: Tensor) -> None:
        before = self._parameter.detach().clone()
        line = self._line()
        self._parameter.grad = gradient
        self._optimizer.step()
        signed = -gradient if line.get("maximize") else gradient
        coupled = self._name not in ("Adafactor", "Lion", "Muon") and not line.get("decoupled_weight_decay")
        decay = line.get("weight_decay", 0.0) if coupled else 0.0
        self._moments = dict(self._rule.moments_after(line, signed + decay * before, self._moments, before))
        g = signed + decay * before
        no_rest = torch.zeros_like(g)
        self.remainders.append(self._rule.remainder(line, g, self._moments) if self._rule.remainder else no_rest)
        self.steps.append(self._rule.step(line, self._moments))
        assert (self._rule.sign(line), self._rule.decay(line)) == (self.steps[-1].sign, self.steps[-1].decay)
        self.gradients.append(gradient)

    def _line(self) -> Line:
        group = self._optimizer.param_groups[0]
        return dict(
            zip(self._rule.columns, self._rule.read(group, self._optimizer.state.get(self._parameter, {})), strict=True)
        )

    def dual(self) -> Tensor:
        adjoint = Adjoint()
        total = torch.zeros(SHAPE, dtype=torch.float64)
        latest_first = zip(self.steps[::-1], self.gradients[::-1], self.remainders[::-1], strict=True)
        for step, gradient, remainder in latest_first:
            total = total - remainder * (adjoint.weight * step.rest)
            total = total + self._rule.times(adjoint.back(step), gradient)
        whole: Tensor = adjoint.weight * self.first + self._rule.times(adjoint.momentum, self.momentum) + total
        return whole


@pytest.mark.parametrize("name", OPTIONS)
def test_the_adjoint_arrives_at_torchs_weights(name: str) -> None:
    @EACH
    @given(options([name]), st.integers(0, 3), st.lists(st.sampled_from([0.0, 0.01, 0.1]), max_size=8), seeds)
    def holds(optimizer: tuple[str, dict[str, Any]], warm: int, rates: list[float], seed: int) -> None:
        torch.manual_seed(seed)
        parameter = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
        stepper = make(name, [parameter], 0.05, optimizer[1])
        for _ in range(warm):
            parameter.grad = torch.randn(SHAPE, dtype=torch.float64)
            stepper.step()
        followed = Followed(name, parameter, stepper)
        for lr in rates:
            stepper.param_groups[0]["lr"] = lr
            followed.step(torch.randn(SHAPE, dtype=torch.float64))
        torch.testing.assert_close(followed.dual(), parameter.detach(), rtol=1e-10, atol=1e-10)

    holds()


def test_every_rule_is_tested() -> None:
    assert sorted(OPTIONS) == sorted(name.rpartition(".")[2] for name in RULES)


def test_nadam_in_double_precision() -> None:
    """torch keeps NAdam's product of mu in its default precision; both are mimicked."""
    torch.set_default_dtype(torch.float64)
    try:
        parameter = torch.ones(SHAPE, requires_grad=True)
        stepper = make("NAdam", [parameter], 0.05, {})
        followed = Followed("NAdam", parameter, stepper)
        for _ in range(4):
            followed.step(torch.randn(SHAPE))
        torch.testing.assert_close(followed.dual(), parameter.detach(), rtol=1e-13, atol=1e-13)
    finally:
        torch.set_default_dtype(torch.float32)

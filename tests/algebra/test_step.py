"""The one adjoint against running the steps forwards, on random scalars and matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.algebra import RULES, Step, adjoint, coefficients

numbers = st.floats(-1.5, 1.5, allow_nan=False)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    shape = draw(st.sampled_from([(), (2, 3)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def field() -> np.ndarray:
        return rng.uniform(-1, 1, shape)

    return [
        Step(rng.choice([-1.0, 1.0]), field(), field(), field(), field(), field(), field())
        for _ in range(draw(st.integers(0, 6)))
    ]


@given(steps(), st.integers(0, 2**16))
def test_adjoint_is_the_forward_run_unrolled(steps: list[Step], seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, momentum = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    gradients = [rng.normal(size=(2, 3)) for _ in steps]
    found = adjoint(reversed(steps))
    dual = found.initial * weight + found.momentum * momentum
    dual = dual + sum(c * g for c, g in zip(found.gradients, gradients, strict=True))
    for step, raw in zip(steps, gradients, strict=True):
        g = step.sign * raw + step.decay * weight
        momentum = step.carry * momentum + step.intake * g
        weight = step.keep * weight - step.alpha * g - step.beta * momentum
    np.testing.assert_allclose(dual, weight, rtol=1e-10, atol=1e-10)


def test_a_step_of_defaults_changes_nothing() -> None:
    found = adjoint([Step()] * 3)
    assert (found.initial, found.momentum, found.gradients) == (1.0, 0.0, [0.0, 0.0, 0.0])


def test_plain_sgd_has_minus_lr_everywhere() -> None:
    ledger = np.zeros((4, 1, 8))
    ledger[:, :, 0] = 1  # stepped
    ledger[:, :, 1] = 0.1  # lr
    found = coefficients(RULES["SGD"], ledger)
    assert np.ravel(found.gradients).tolist() == pytest.approx([-0.1] * 4)
    assert found.initial == pytest.approx(1.0)


def test_a_parameter_that_was_not_stepped_is_left_alone() -> None:
    ledger = np.zeros((3, 1, 8))
    ledger[:, :, 1:5] = [0.1, 0.9, 0.0, 0.5]  # lr, momentum, dampening, weight decay
    found = coefficients(RULES["SGD"], ledger)
    assert np.ravel(found.gradients).tolist() == [0.0, 0.0, 0.0]
    assert found.initial == pytest.approx(1.0)

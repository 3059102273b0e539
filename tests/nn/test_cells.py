"""dualform's cells against torch's, and against layers of the same weights."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from tests.nn.cases import Spy
from tests.nn.recurrent import CELLS

each_cell = pytest.mark.parametrize("kind", CELLS)


def twins(kind: str, d_in: int = 3, hidden: int = 4, **options: Any) -> tuple[nn.Module, Any]:
    """Equal cells: the same seed is all it takes."""
    made = []
    for module in (nn, dualform.nn):
        torch.manual_seed(0)
        made.append(getattr(module, kind)(d_in, hidden, dtype=torch.float64, **options))
    return made[0], made[1]


def everything(cell: nn.Module, inputs: Tensor, states: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the new states, after two steps, and the gradients of all there is."""
    hx: Any = tuple(states) if len(states) > 1 else states[0] if states else None
    last = cell(inputs.sin(), cell(inputs, hx))
    results = [*last] if isinstance(last, tuple) else [last]
    loss = torch.stack([(n + result).square().sum() for n, result in enumerate(results)]).sum()
    return results, list(torch.autograd.grad(loss, [*cell.parameters(), inputs, *states], allow_unused=True))


def states_of(kind: str, *shape: int) -> list[Tensor]:
    number = 2 if kind == "LSTMCell" else 1
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(number)]


@each_cell
def test_everything_equals_torch(kind: str) -> None:
    @given(
        st.sampled_from([(), (0,), (1,), (5,)]), st.booleans(), st.booleans(), st.sampled_from(["tanh", "relu"]),
        st.integers(1, 4), st.integers(1, 4),
    )  # fmt: skip
    def check(batch: tuple[int], bias: bool, states: bool, nonlinearity: str, d_in: int, hidden: int) -> None:
        options = {"bias": bias, **({"nonlinearity": nonlinearity} if kind == "RNNCell" else {})}
        fused, visible = twins(kind, d_in, hidden, **options)
        inputs = torch.randn(*batch, d_in, dtype=torch.float64, requires_grad=True)
        initial = states_of(kind, *batch, hidden) if states else []
        expected, found = (everything(cell, inputs, initial) for cell in (fused, visible))
        assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert list(visible.state_dict()) == list(fused.state_dict())

    check()


@each_cell
def test_gradcheck(kind: str) -> None:
    _, visible = twins(kind)
    names = list(dict(visible.named_parameters()))

    def run(*tensors: Tensor) -> Any:
        weights, (inputs, *states) = dict(zip(names, tensors, strict=False)), tensors[len(names) :]
        hx = tuple(states) if len(states) > 1 else states[0]
        return torch.func.functional_call(visible, weights, (inputs, hx))

    inputs = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (*visible.parameters(), inputs, *states_of(kind, 2, 4)))


@each_cell
@pytest.mark.parametrize("batch", [(), (5,)])
def test_keys_and_errors_are_all_of_the_gradient(kind: str, batch: tuple[int, ...]) -> None:
    _, visible = twins(kind)
    spies = {name: Spy() for name in visible.maps()}
    for name, spy in spies.items():
        visible.tap(name, spy)
    inputs = torch.randn(*batch, 3, dtype=torch.float64, requires_grad=True)
    _, gradients = everything(visible, inputs, states_of(kind, *batch, 4))
    of_parameters = dict(zip(dict(visible.named_parameters()), gradients, strict=False))
    seen = set()
    for name, found in visible.maps().items():
        assert [keys.shape for keys in spies[name].keys] == 2 * [(*batch, found.d_in)]  # of two steps
        steps = zip(spies[name].keys, reversed(spies[name].errors), strict=True)
        pairs = [(keys.reshape(-1, found.d_in), errors.reshape(-1, found.d_out)) for keys, errors in steps]
        product = torch.stack([errors.T @ keys for keys, errors in pairs]).sum(0)
        for parameter, columns in found.columns.items():
            bias = torch.stack([errors.sum(0) for _, errors in pairs]).sum(0)
            expected = bias if columns is None else product[:, slice(*columns)]
            assert_close(of_parameters[parameter], expected, rtol=1e-9, atol=1e-9)
            seen.add(parameter)
    assert seen == set(of_parameters)


@each_cell
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_results_may_be_changed_in_place(kind: str, batch: tuple[int, ...]) -> None:
    inputs, found = torch.randn(*batch, 3, dtype=torch.float64), []
    for cell in twins(kind):
        last = cell(inputs)
        states = last if isinstance(last, tuple) else [last]
        own = type(cell).__module__.startswith("dualform")  # torch's refuse it
        loss = torch.stack([(state if own else state.clone()).mul_(2).square().sum() for state in states])
        found.append(torch.autograd.grad(loss.sum(), list(cell.parameters())))
    assert_close(found[1], found[0])


@each_cell
def test_autocast_changes_nothing(kind: str) -> None:
    _, visible = twins(kind)
    inputs, states = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), states_of(kind, 5, 4)
    expected = everything(visible, inputs, states)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(everything(visible, inputs, states), expected, rtol=0, atol=0)


@each_cell
def test_bad_inputs_raise_as_in_torch(kind: str) -> None:
    for cell in twins(kind):
        state = states_of(kind, 3, 4)
        hx: Any = tuple(state) if len(state) > 1 else state[0]
        for inputs in (torch.zeros(2, 2, 3), torch.zeros(3, 2), torch.zeros(2, 3), torch.zeros(2)):
            with pytest.raises((RuntimeError, ValueError)):
                cell(inputs.double(), hx)

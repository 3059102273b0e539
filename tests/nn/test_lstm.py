"""dualform.nn.LSTM against torch.nn.LSTM."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from dualform.nn import LSTM
from tests.nn.cases import BATCH, D_IN, HIDDEN, LOSSES, TIME, States, gradients, inputs_for, states_for, twins


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("given_states", [False, True])
def test_everything_equals_torch(
    dtype: torch.dtype, num_layers: int, batch_first: bool, bias: bool, batched: bool, given_states: bool
) -> None:
    fused, lstm = twins(dtype, num_layers=num_layers, batch_first=batch_first, bias=bias)
    inputs = inputs_for(fused, batched)
    states = states_for(fused, batched) if given_states else None
    close = 1e-6 if dtype == torch.float32 else 1e-12
    assert_close(lstm(inputs, states), fused(inputs, states), rtol=0, atol=close)
    found, expected = (gradients(module, "all", inputs, states) for module in (lstm, fused))
    assert_close(found, expected, rtol=10 * close, atol=10 * close)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("given_states", [False, True])
def test_gradients_of_any_loss(loss: str, given_states: bool) -> None:
    fused, lstm = twins(num_layers=2)
    inputs, states = inputs_for(fused), states_for(fused) if given_states else None
    assert_close(gradients(lstm, loss, inputs, states), gradients(fused, loss, inputs, states))


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16))
def test_gradients_at_any_size(time: int, batch: int, d_in: int, hidden: int, seed: int) -> None:
    torch.manual_seed(seed)
    fused = nn.LSTM(d_in, hidden, dtype=torch.float64)
    lstm = LSTM(d_in, hidden, dtype=torch.float64)
    lstm.load_state_dict(fused.state_dict())
    inputs = torch.randn(time, batch, d_in, dtype=torch.float64, requires_grad=True)
    assert_close(gradients(lstm, "all", inputs, None), gradients(fused, "all", inputs, None))


def test_the_same_dropout_as_torch() -> None:
    fused, lstm = twins(torch.float32, num_layers=2, dropout=0.5)
    inputs, results = inputs_for(fused), []
    for module in (fused, lstm):
        torch.manual_seed(1)
        trained = module(inputs), gradients(module, "all", inputs, None)
        results.append((trained, module.eval()(inputs)))
    assert_close(results[1], results[0], rtol=0, atol=1e-5)


def test_a_second_backward_pass_finds_the_same() -> None:
    _, lstm = twins()
    output, _ = lstm(inputs_for(lstm))
    first, second = (
        torch.autograd.grad(output.sin().sum(), list(lstm.parameters()), retain_graph=True) for _ in range(2)
    )
    assert_close(first, second, rtol=0, atol=0)


def test_results_may_be_changed_in_place() -> None:
    fused, lstm = twins()
    inputs = inputs_for(lstm)
    found = []
    for module in (fused, lstm):
        output, (h, c) = module(inputs)
        loss = output.mul_(2).sum() + h.mul_(3).sum() + c.mul_(4).sum()
        found.append(torch.autograd.grad(loss, list(module.parameters())))
    assert_close(found[1], found[0])


def test_frozen_parameters_get_no_gradient() -> None:
    fused, lstm = twins()
    inputs = inputs_for(lstm).detach()
    for module in (fused, lstm):
        module.get_parameter("weight_hh_l0").requires_grad_(False)
        module.get_parameter("bias_ih_l0").requires_grad_(False)
        module(inputs)[0].sin().sum().backward()
    assert lstm.weight_hh_l0.grad is None
    assert lstm.bias_ih_l0.grad is None
    assert_close(lstm.weight_ih_l0.grad, fused.weight_ih_l0.grad)
    assert_close(lstm.bias_hh_l0.grad, fused.bias_hh_l0.grad)


def test_what_needs_no_gradient_is_not_computed() -> None:
    _, lstm = twins()
    for name in ("weight_hh_l0", "bias_ih_l0"):
        lstm.get_parameter(name).requires_grad = False
    output, _ = lstm(inputs_for(lstm).detach())
    assert output.grad_fn is not None
    computed: list[bool] = []
    unrolled = output.grad_fn.next_functions[0][0]  # the output is a view of rows
    assert unrolled is not None
    unrolled.register_hook(lambda found, _: computed.extend(gradient is not None for gradient in found))
    output.sum().backward()
    inputs, _, _, *parameters = computed  # gradients of the initial states fall out of the recurrence
    assert (inputs, parameters) == (False, [True, False, False, True])


def test_the_two_biases_own_their_gradients() -> None:
    _, lstm = twins()
    output, _ = lstm(inputs_for(lstm))
    *_, first, second = torch.autograd.grad(output.sin().sum(), list(lstm.parameters()))
    assert_close(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_no_second_derivatives() -> None:
    _, lstm = twins()
    loss = lstm(inputs_for(lstm))[0].sin().sum()
    (gradient,) = torch.autograd.grad(loss, lstm.all_weights[0][0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_autocast_changes_nothing() -> None:
    _, lstm = twins(torch.float32)
    inputs, states = inputs_for(lstm), states_for(lstm)
    plain, expected = lstm(inputs, states), gradients(lstm, "all", inputs, states)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(lstm(inputs, states), plain, rtol=0, atol=0)
        assert_close(gradients(lstm, "all", inputs, states), expected, rtol=0, atol=0)
        assert lstm(inputs.bfloat16(), states)[0].dtype == torch.float32


def test_bfloat16() -> None:
    fused, lstm = twins(torch.bfloat16)
    inputs = inputs_for(lstm)
    assert_close(lstm(inputs), fused(inputs), rtol=0.02, atol=0.02)
    assert_close(gradients(lstm, "all", inputs, None), gradients(fused, "all", inputs, None), rtol=0.1, atol=0.1)


def test_state_dicts_are_interchangeable() -> None:
    fused, lstm = nn.LSTM(D_IN, HIDDEN, 2), LSTM(D_IN, HIDDEN, 2)
    inputs = inputs_for(lstm)
    for source, target in ((fused, lstm), (lstm, fused)):
        source.reset_parameters()
        target.load_state_dict(source.state_dict())
        assert list(target.state_dict()) == list(source.state_dict())
        assert_close(target(inputs), source(inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(TIME, BATCH, D_IN + 1), (TIME, D_IN + 1), (D_IN,), (1, TIME, BATCH, D_IN)])
def test_inputs_of_a_wrong_shape_raise_as_in_torch(shape: tuple[int, ...]) -> None:
    for module in twins(torch.float32):
        with pytest.raises((ValueError, RuntimeError), match="input"):
            module(torch.randn(shape))


@pytest.mark.parametrize(
    "states",
    [
        (torch.zeros(1, BATCH + 1, HIDDEN), torch.zeros(1, BATCH, HIDDEN)),
        (torch.zeros(1, BATCH, HIDDEN), torch.zeros(1, BATCH, HIDDEN + 1)),
        (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN)),
        (torch.zeros(1, BATCH, HIDDEN).double(), torch.zeros(1, BATCH, HIDDEN).double()),
    ],
)
def test_wrong_states_raise_as_in_torch(states: States) -> None:
    for module in twins(torch.float32):
        with pytest.raises(RuntimeError):
            module(torch.randn(TIME, BATCH, D_IN), states)


def test_a_wrong_dtype_and_an_empty_sequence_raise_as_in_torch() -> None:
    for module in twins(torch.float32):
        with pytest.raises(ValueError, match="dtype"):
            module(torch.randn(TIME, BATCH, D_IN).double())
        with pytest.raises(RuntimeError, match="larger than 0"):
            module(torch.randn(0, BATCH, D_IN))

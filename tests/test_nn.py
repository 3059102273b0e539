"""dualform.nn.LSTM against torch.nn.LSTM, and its taps against the gradients they must explain."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from dualform.errors import RecordingError, UnknownName
from dualform.nn import LSTM, unfuse

D_IN, HIDDEN, TIME, BATCH = 3, 4, 5, 2
States = tuple[Tensor, Tensor]
Result = tuple[Tensor, States]

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "output": lambda output, h, c: output.sin().sum(),
    "h_n": lambda output, h, c: h.exp().sum(),
    "c_n": lambda output, h, c: c.square().sum(),
    "h_n and c_n": lambda output, h, c: (h * c).sum(),
    "last output": lambda output, h, c: output[-1].sin().sum(),
    "all": lambda output, h, c: output.sin().sum() + (h * c).sum(),
}


def twins(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.LSTM, LSTM]:
    """Equal modules: the same seed is all it takes."""
    torch.manual_seed(0)
    fused = nn.LSTM(D_IN, HIDDEN, dtype=dtype, **options)
    torch.manual_seed(0)
    return fused, LSTM(D_IN, HIDDEN, dtype=dtype, **options)


def inputs_for(lstm: nn.LSTM, batched: bool = True) -> Tensor:
    batch_dims = ([BATCH, TIME] if lstm.batch_first else [TIME, BATCH]) if batched else [TIME]
    return torch.randn(*batch_dims, D_IN, dtype=lstm.all_weights[0][0].dtype, requires_grad=True)


def states_for(lstm: nn.LSTM, batched: bool = True) -> States:
    shape = [lstm.num_layers, BATCH, HIDDEN] if batched else [lstm.num_layers, HIDDEN]
    h, c = (torch.randn(*shape, dtype=lstm.all_weights[0][0].dtype, requires_grad=True) for _ in range(2))
    return h, c


def gradients(lstm: nn.LSTM, loss: str, inputs: Tensor, states: States | None) -> list[Tensor | None]:
    """Of everything there is: parameters, input, initial states."""
    output, last = lstm(inputs, states)
    wanted = [*lstm.parameters(), inputs, *(states or ())]
    return list(torch.autograd.grad(LOSSES[loss](output, *last), wanted, allow_unused=True))


def weight_gradient(lstm: nn.LSTM, layer: int) -> Tensor:
    grads = [lstm.get_parameter(f"weight_{part}_l{layer}").grad for part in ("ih", "hh")]
    return torch.cat([grad for grad in grads if grad is not None], dim=1)  # (4 hidden, d_in + hidden)


# --- Results


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


def test_gradcheck() -> None:
    lstm = LSTM(D_IN, HIDDEN, num_layers=2, dtype=torch.float64)
    names = list(dict(lstm.named_parameters()))

    def run(inputs: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(names, parameters, strict=True))
        output, last = torch.func.functional_call(lstm, weights, (inputs, (h, c)))
        return (output, *last)

    assert torch.autograd.gradcheck(run, (inputs_for(lstm), *states_for(lstm), *lstm.parameters()))


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
    output.grad_fn.register_hook(lambda found, _: computed.extend(gradient is not None for gradient in found))
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


# --- In the place of torch.nn.LSTM


def test_state_dicts_are_interchangeable() -> None:
    fused, lstm = nn.LSTM(D_IN, HIDDEN, 2), LSTM(D_IN, HIDDEN, 2)
    inputs = inputs_for(lstm)
    for source, target in ((fused, lstm), (lstm, fused)):
        source.reset_parameters()
        target.load_state_dict(source.state_dict())
        assert list(target.state_dict()) == list(source.state_dict())
        assert_close(target(inputs), source(inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "named"), [({"bidirectional": True}, "bidirectional=True"), ({"proj_size": 2}, "proj_size=2")]
)
def test_unsupported_options_raise(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RecordingError, match=f"{named} is not supported; keep torch.nn.LSTM"):
        LSTM(D_IN, HIDDEN, **options)


def test_packed_sequences_raise() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, D_IN), torch.randn(2, D_IN)])
    with pytest.raises(RecordingError, match="PackedSequence.*keep torch.nn.LSTM"):
        LSTM(D_IN, HIDDEN)(packed)


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


# --- Taps


class Spy:
    """A tap that keeps what it is shown."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.errors: list[Tensor] = []

    def __call__(self, keys: Tensor) -> Callable[[Tensor], None]:
        self.keys.append(keys)
        return self.errors.append


def test_keys_are_the_input_and_the_previous_hidden_state() -> None:
    _, lstm = twins(num_layers=2)
    spies = [Spy(), Spy()]
    for layer, spy in enumerate(spies):
        lstm.tap(layer, spy)
    inputs, (h, c) = inputs_for(lstm), states_for(lstm)
    output, _ = lstm(inputs, (h, c))
    first, second = (spy.keys[0] for spy in spies)
    assert not first.requires_grad
    assert_close(first[..., :D_IN], inputs.detach())
    assert_close(first[0, :, D_IN:], h[0].detach())
    assert_close(first[1:, :, D_IN:], second[:-1, :, :HIDDEN])
    assert_close(second[0, :, HIDDEN:], h[1].detach())
    assert_close(second[1:, :, HIDDEN:], output[:-1].detach())


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_keys_and_errors_are_all_of_the_gradient(batch_first: bool, batched: bool, bias: bool) -> None:
    _, lstm = twins(num_layers=2, batch_first=batch_first, bias=bias)
    spies = [Spy(), Spy()]
    for layer, spy in enumerate(spies):
        lstm.tap(layer, spy)
    inputs = inputs_for(lstm, batched)
    output, (h, c) = lstm(inputs, states_for(lstm, batched))
    LOSSES["all"](output, h, c).backward()
    for layer, spy in enumerate(spies):
        (keys,), (errors,) = spy.keys, spy.errors
        assert keys.shape == (*inputs.shape[:-1], (HIDDEN if layer else D_IN) + HIDDEN)
        assert errors.shape == (*inputs.shape[:-1], 4 * HIDDEN)
        assert not errors.requires_grad
        flat = errors.reshape(-1, 4 * HIDDEN)
        assert_close(flat.T @ keys.reshape(len(flat), -1), weight_gradient(lstm, layer))
        if bias:
            assert_close(flat.sum(0), lstm.get_parameter(f"bias_ih_l{layer}").grad)
            assert_close(flat.sum(0), lstm.get_parameter(f"bias_hh_l{layer}").grad)


def test_the_errors_are_seen_before_the_gradients_are_there() -> None:
    _, lstm = twins()
    seen: list[Tensor | None] = []
    lstm.tap(0, lambda keys: lambda errors: seen.append(lstm.all_weights[0][0].grad))
    lstm(inputs_for(lstm))[0].sum().backward()
    assert seen == [None]


def test_keys_survive_the_next_pass() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap(0, spy)
    lstm(inputs_for(lstm))
    kept = spy.keys[0].clone()
    lstm(inputs_for(lstm))
    assert_close(spy.keys[0], kept, rtol=0, atol=0)
    assert spy.keys[1].data_ptr() != spy.keys[0].data_ptr()


def test_several_taps_are_served_until_they_are_removed() -> None:
    _, lstm = twins()
    first, second, deaf = Spy(), Spy(), []
    handle = lstm.tap(0, first)
    lstm.tap(0, second)
    lstm.tap(0, lambda keys: deaf.append(keys))
    lstm(inputs_for(lstm))[0].sum().backward()
    handle.remove()
    lstm(inputs_for(lstm))[0].sum().backward()
    assert [len(seen) for seen in (first.keys, first.errors, second.keys, second.errors, deaf)] == [1, 1, 2, 2, 2]


def test_without_gradients_only_keys_are_seen() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap(0, spy)
    with torch.no_grad():
        lstm(inputs_for(lstm))
    lstm.requires_grad_(False)(inputs_for(lstm).detach())
    assert len(spy.keys) == 2
    assert not spy.errors


def test_taps_change_no_results() -> None:
    _, lstm = twins()
    inputs = inputs_for(lstm)
    plain = lstm(inputs), gradients(lstm, "all", inputs, None)
    lstm.tap(0, Spy())
    assert_close((lstm(inputs), gradients(lstm, "all", inputs, None)), plain, rtol=0, atol=0)


def test_copies_have_no_taps() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap(0, spy)
    inputs = inputs_for(lstm).detach()
    for other in (copy.deepcopy(lstm), copy.copy(lstm), pickle.loads(pickle.dumps(lstm))):
        other(inputs)
        assert not spy.keys
        other.tap(0, Spy())
    expected = lstm(inputs)
    assert len(spy.keys) == 1
    assert_close(copy.deepcopy(lstm)(inputs), expected)
    assert not any("tap" in name for name in lstm.state_dict())


def test_an_unknown_layer_raises() -> None:
    with pytest.raises(UnknownName, match="no LSTM layer 2; there is 0, 1"):
        LSTM(D_IN, HIDDEN, 2).tap(2, Spy())


# --- unfuse


class Reader(nn.Module):
    """An LSTM under two names, one in a container, and a head."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first = nn.LSTM(D_IN, HIDDEN)
        self.again = self.first
        self.more = nn.ModuleList([nn.LSTM(HIDDEN, HIDDEN, **options)])
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        middle, states = self.first(inputs)
        middle, _ = self.again(inputs, states)
        output: Tensor = self.head(self.more[0](middle)[0])
        return output


def test_unfuse_keeps_parameters_and_results() -> None:
    torch.manual_seed(0)
    model = Reader().double().eval()
    model.more[0].get_parameter("weight_ih_l0").requires_grad_(False)
    model.more.train()
    inputs = torch.randn(TIME, BATCH, D_IN, dtype=torch.float64)
    expected, before = model(inputs), dict(model.named_parameters())
    assert unfuse(model) is model
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert isinstance(model.first, LSTM)
    assert isinstance(model.more[0], LSTM)
    assert model.again is model.first
    assert (model.first.training, model.more[0].training) == (False, True)
    assert not model.more[0].weight_ih_l0.requires_grad
    assert_close(model(inputs), expected)


def test_training_goes_on_after_unfuse() -> None:
    torch.manual_seed(0)
    plain = Reader().double()
    swapped = copy.deepcopy(plain)
    inputs = torch.randn(TIME, BATCH, D_IN, dtype=torch.float64)
    optimizers = {model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (plain, swapped)}
    for step in range(4):
        if step == 2:
            unfuse(swapped)
        for model, optimizer in optimizers.items():
            optimizer.zero_grad()
            model(inputs).sin().sum().backward()
            optimizer.step()
    assert_close(dict(swapped.state_dict()), dict(plain.state_dict()))


def test_unfuse_of_an_lstm_itself_keeps_hooks_and_takes_taps() -> None:
    calls: list[nn.Module] = []
    fused, _ = twins(num_layers=2)
    fused.register_forward_hook(lambda module, inputs, output: calls.append(module))
    lstm = unfuse(fused)
    assert isinstance(lstm, LSTM)
    spy = Spy()
    lstm.tap(1, spy)
    lstm(inputs_for(lstm))[0].sum().backward()
    assert calls == [lstm]
    assert len(spy.errors) == 1
    assert unfuse(lstm) is lstm
    assert len(lstm._taps[1]) == 1


def test_unfuse_leaves_subclasses_alone() -> None:
    class Own(nn.LSTM):
        pass

    model = nn.Sequential(Own(D_IN, HIDDEN), nn.Linear(HIDDEN, 2))
    assert type(unfuse(model)[0]) is Own


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 2}])
def test_unfuse_names_what_it_cannot_replace_and_touches_nothing(options: dict[str, Any]) -> None:
    model = Reader(**options)
    with pytest.raises(RecordingError, match="the LSTM 'more.0': .* is not supported"):
        unfuse(model)
    assert type(model.first) is nn.LSTM


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_unfuse_refuses_parametrised_weights(norm: Callable[..., nn.Module]) -> None:
    model = nn.Sequential(nn.Identity(), norm(nn.LSTM(D_IN, HIDDEN), "weight_hh_l0"))
    with pytest.raises(RecordingError, match="the LSTM '1': weight_hh_l0"):
        unfuse(model)

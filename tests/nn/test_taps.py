"""Taps against the gradients that keys and errors must explain."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dualform.errors import UnknownName
from dualform.nn import LSTM
from tests.nn.cases import (
    D_IN,
    HIDDEN,
    LOSSES,
    Spy,
    gradients,
    inputs_for,
    states_for,
    twins,
    weight_gradient,
)


def test_keys_are_the_input_and_the_previous_hidden_state() -> None:
    _, lstm = twins(num_layers=2)
    spies = [Spy(), Spy()]
    for layer, spy in enumerate(spies):
        lstm.tap(f"l{layer}", spy)
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
        lstm.tap(f"l{layer}", spy)
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
    lstm.tap("l0", lambda keys: lambda errors: seen.append(lstm.all_weights[0][0].grad))
    lstm(inputs_for(lstm))[0].sum().backward()
    assert seen == [None]


def test_keys_survive_the_next_pass() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap("l0", spy)
    lstm(inputs_for(lstm))
    kept = spy.keys[0].clone()
    lstm(inputs_for(lstm))
    assert_close(spy.keys[0], kept, rtol=0, atol=0)
    assert spy.keys[1].data_ptr() != spy.keys[0].data_ptr()


def test_several_taps_are_served_until_they_are_removed() -> None:
    _, lstm = twins()
    first, second, deaf = Spy(), Spy(), []
    handle = lstm.tap("l0", first)
    lstm.tap("l0", second)
    lstm.tap("l0", lambda keys: deaf.append(keys))
    lstm(inputs_for(lstm))[0].sum().backward()
    handle.remove()
    lstm(inputs_for(lstm))[0].sum().backward()
    assert [len(seen) for seen in (first.keys, first.errors, second.keys, second.errors, deaf)] == [1, 1, 2, 2, 2]


def test_without_gradients_only_keys_are_seen() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap("l0", spy)
    with torch.no_grad():
        lstm(inputs_for(lstm))
    lstm.requires_grad_(False)(inputs_for(lstm).detach())
    assert len(spy.keys) == 2
    assert not spy.errors


def test_taps_change_no_results() -> None:
    _, lstm = twins()
    inputs = inputs_for(lstm)
    plain = lstm(inputs), gradients(lstm, "all", inputs, None)
    lstm.tap("l0", Spy())
    assert_close((lstm(inputs), gradients(lstm, "all", inputs, None)), plain, rtol=0, atol=0)


def test_copies_have_no_taps() -> None:
    _, lstm = twins()
    spy = Spy()
    lstm.tap("l0", spy)
    inputs = inputs_for(lstm).detach()
    for other in (copy.deepcopy(lstm), copy.copy(lstm), pickle.loads(pickle.dumps(lstm))):
        other(inputs)
        assert not spy.keys
        other.tap("l0", Spy())
    expected = lstm(inputs)
    assert len(spy.keys) == 1
    assert_close(copy.deepcopy(lstm)(inputs), expected)
    assert not any("tap" in name for name in lstm.state_dict())


def test_an_unknown_layer_raises() -> None:
    with pytest.raises(UnknownName, match="no map of LSTM .l2.*choose from .l0., .l1."):
        LSTM(D_IN, HIDDEN, 2).tap("l2", Spy())

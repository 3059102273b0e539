"""dualform.unfuse: an LSTM in view in the place of a fused one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dualform.errors import RecordingError
from dualform.nn import LSTM, unfuse
from tests.nn.cases import (
    BATCH,
    D_IN,
    HIDDEN,
    TIME,
    Spy,
    inputs_for,
    twins,
)


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
    lstm.tap("l1", spy)
    lstm(inputs_for(lstm))[0].sum().backward()
    assert calls == [lstm]
    assert len(spy.errors) == 1
    assert unfuse(lstm) is lstm
    lstm(inputs_for(lstm))[0].sum().backward()
    assert len(spy.errors) == 2  # the tap is still there


def test_unfuse_leaves_subclasses_alone() -> None:
    class Own(nn.LSTM):
        pass

    model = nn.Sequential(Own(D_IN, HIDDEN), nn.Linear(HIDDEN, 2))
    assert type(unfuse(model)[0]) is Own


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize(("fused", "weight"), [(nn.LSTM, "weight_hh_l0"), (nn.GRUCell, "weight_ih")])
def test_unfuse_refuses_parametrised_weights_and_touches_nothing(
    norm: Callable[..., nn.Module], fused: type[nn.Module], weight: str
) -> None:
    model = nn.Sequential(nn.RNN(D_IN, HIDDEN), norm(fused(D_IN, HIDDEN), weight))
    with pytest.raises(RecordingError, match=f"the {fused.__name__} '1': {weight}"):
        unfuse(model)
    assert type(model[0]) is nn.RNN

"""A padding row has no gradient, but decays: rebuilt and muted weights stay finite and exact, however long it does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from tests.dense import Dense, example_gradients
from tests.optimizers import DECAYING

STEPS = 120


def model_of(start: float) -> nn.Module:
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.Linear(9, 3)).double()
    model[0].weight.data[0] = start  # type: ignore[operator]
    return model


def batch() -> tuple[Tensor, Tensor]:
    tokens, targets = torch.randint(6, (5, 3)), torch.randint(3, (5,))
    tokens[:, 0] = 0
    return tokens, targets


@pytest.mark.parametrize("options", [{}, {"maximize": True}], ids=["", "maximize"])
@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("name", DECAYING)
def test_a_padding_row_that_decays(tmp_path: Path, name: str, start: float, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, given = model_of(start), {"weight_decay": 0.1, **options}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **given)
    dense, halfway = Dense(model, name), {}
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64") as recorder:
        for number in range(STEPS):
            tokens, targets = batch()
            recorder.tag(label=targets)
            groups = dict.fromkeys(dict(model.named_parameters()), optimizer.param_groups[0])
            dense.step(example_gradients(copy.deepcopy(model), tokens, targets, targets.tolist(), 1.0), groups)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), targets).backward()
            optimizer.step()
            if number == STEPS // 2 - 1:
                halfway = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    for layer in memory.layers:
        for parameter, weight in memory.weights(layer).items():
            assert_close(weight, dense.weight(parameter), rtol=1e-8, atol=1e-8)
        for parameter, weight in memory.without(label=1).weights(layer).items():
            assert_close(weight, dense.weight(parameter, (0, 2)), rtol=1e-6, atol=1e-6)
        for parameter, weight in memory.until(step=STEPS // 2).weights(layer).items():
            assert_close(weight, halfway[parameter], rtol=1e-8, atol=1e-8)

"""What `memory.attend` is called with by mistake: an error that says what to pass instead."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform.errors import QueryError, UnknownName
from dualform.memory import Memory

INPUTS = torch.ones(2, 5)


class Sum(nn.Module):
    """Takes one tensor, or two; or a list of numbers, of which it makes a tensor itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, first: Any, second: Tensor | None = None, listed: bool = False) -> Tensor:
        if listed:
            first = torch.as_tensor(first)
        output: Tensor = self.layer(first if second is None else first + second)
        return output


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Memory, nn.Module]:
    path, model = tmp_path_factory.mktemp("inputs") / "run", Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path):
        model(INPUTS).square().sum().backward()
        optimizer.step()
    return dualform.load(path), model


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (np.ones((2, 5)), r"cannot be called with ndarray: pass tensors, torch.as_tensor\(x\)"),
        ([[1.0] * 5], r"cannot be called with list: pass tensors, torch.as_tensor\(x\)"),
        ((INPUTS, np.ones((2, 5), np.int64)), "cannot be called with ndarray: pass tensors"),
        ({"first": INPUTS.tolist()}, "cannot be called with list: pass tensors"),
        (None, "needs what to call the model with, got None"),
    ],
)
def test_inputs_that_are_no_tensors(case: tuple[Memory, nn.Module], inputs: Any, says: str) -> None:
    memory, model = case
    with pytest.raises(QueryError, match=says):
        memory.attend(model, inputs)
    with pytest.raises(QueryError, match="needs what to call the model with"):
        memory.attend(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_may_take_what_it_likes(case: tuple[Memory, nn.Module]) -> None:
    memory, model = case
    assert len(memory.attend(model, {"first": INPUTS.tolist(), "listed": True})["layer"].queries) == 2
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the model's own error, where tensors came
        memory.attend(model, torch.ones(2, 6))


@pytest.mark.parametrize(
    ("queries", "says"),
    [
        (
            np.ones((2, 5)),
            r"queries of layer 'layer' are a tensor \(..., 5\), got ndarray: pass torch.as_tensor\(x\)",
        ),
        ([[1.0] * 5], "are a tensor .*, got list"),
        (None, "are a tensor .*, got NoneType"),
        (torch.tensor(1.0), "has 5 entries, this one is a single number"),
        (torch.ones(2, 6), "has 5 entries, this one has 6"),
    ],
)
def test_queries_that_are_none(case: tuple[Memory, nn.Module], queries: Any, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        case[0].attend({"layer": queries})


def test_queries_of_no_layer(case: tuple[Memory, nn.Module]) -> None:
    with pytest.raises(UnknownName, match=r"no layer 'layer\.weight'; choose from 'layer'"):
        case[0].attend(case[1].state_dict())


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        (INPUTS, None, r"pass memory.attend\(model, inputs\), .* or \{layer: queries\}; got Tensor"),
        (INPUTS, Sum(), "the model first, .* got Tensor"),
        (None, INPUTS, "got NoneType"),
        (Sum, INPUTS, "got the class Sum"),
        (Sum().forward, INPUTS, "got method"),
        ("layer", INPUTS, "got str"),
    ],
)
def test_what_is_neither_a_model_nor_queries(
    case: tuple[Memory, nn.Module], model: Any, inputs: Any, says: str
) -> None:
    with pytest.raises(QueryError, match=says):
        case[0].attend(model, inputs)

"""Models that are compiled, or called in torch.vmap and torch.func: recorded, or an error says why not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp, vmap

from dualform.errors import RecordingError, UnexplainedGradient
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step


def through_vmap(model: nn.Module) -> None:
    vmap(model)(batch()[0]).square().sum().backward()


def by_grad(model: nn.Module) -> None:
    parameters, inputs = dict(model.named_parameters()), batch()[0]
    gradients = grad(lambda some: functional_call(model, some, (inputs,)).square().sum())(parameters)
    for name, parameter in parameters.items():
        parameter.grad = gradients[name]


def by_gradients_of_examples(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())

    def loss(some: Mapping[str, Tensor], row: Tensor) -> Tensor:
        total: Tensor = functional_call(model, dict(some), (row,)).square().sum()
        return total

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, batch()[0])
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].sum(dim=0)


@pytest.mark.parametrize("backward", [through_vmap, by_grad, by_gradients_of_examples])
def test_gradients_by_transforms(tmp_path: Path, backward: Callable[[nn.Module], None]) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with (
        pytest.raises(UnexplainedGradient, match=r"layer '0': .* layer '2': .* called in torch.vmap or torch.func"),
        record(model, optimizer, tmp_path / "run"),
    ):
        backward(model)
        optimizer.step()


def test_transforms_between_steps_are_not_recorded(tmp_path: Path) -> None:
    """Jacobians of a model, say, to look at."""
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            inputs, targets = batch()
            jacrev(model)(inputs[0])
            output, pull_back, *_ = vjp(model, inputs)
            pull_back(output)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            vmap(grad(lambda row: model(row).sum()))(inputs)
            optimizer.step()
    assert assert_exact(tmp_path / "run", model, 3).slots("0") == 18


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(model, backend="eager", **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
def test_a_model_that_was_compiled_and_run_before(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer, fast = sgd(model), compiled(model)
    step(fast, optimizer)
    with (
        pytest.raises(UnexplainedGradient, match=r"compiled and run before \(call torch.compiler.reset\(\)"),
        record(fast, optimizer, tmp_path / "run"),
    ):
        step(fast, optimizer)
    torch.compiler.reset()
    with record(fast, optimizer, tmp_path / "run"):
        step(fast, optimizer)
    assert_exact(tmp_path / "run", model, 1)


@pytest.mark.slow
def test_a_graph_that_must_not_break(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    for whole in (compiled(model, fullgraph=True), nn.Sequential(compiled(model, fullgraph=True))):
        with pytest.raises(RecordingError, match="fullgraph=True: .* compile without fullgraph=True"):
            record(whole, optimizer, tmp_path / "run")
    function = compiled(lambda inputs: model(inputs), fullgraph=True)  # which nobody can know before it is called
    with (
        pytest.raises(torch._dynamo.exc.Unsupported, match="dualform .* compile without fullgraph=True"),
        record(model, optimizer, tmp_path / "run"),
    ):
        function(batch()[0])

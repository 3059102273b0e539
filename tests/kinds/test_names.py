"""What layers are called whose modules have no name of their own: by that name they are recorded, asked and muted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dualform
from tests.recorder.loops import sgd


class Wrapper(nn.Module):
    """Calls its layer as parallel wrappers call their model, and has another one of a name that could be made up."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.linear = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.linear(self.module(inputs))
        return output


def numbers() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


CASES: dict[str, tuple[Callable[[], Any], list[str], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(5, 3), ["linear"], numbers),
    "embedding": (lambda: nn.Embedding(5, 3), ["embedding"], lambda: torch.randint(5, (6,))),
    "compiled": (lambda: compiled(nn.Linear(5, 3)), ["linear"], numbers),
    "module": (Wrapper, ["module", "linear"], numbers),
    "compiled module": (lambda: compiled(Wrapper()), ["module", "linear"], numbers),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize(("make", "names", "inputs"), CASES.values(), ids=CASES)
def test_a_layer_without_a_name_of_its_own(
    tmp_path: Path, make: Callable[[], Any], names: list[str], inputs: Callable[[], Tensor]
) -> None:
    torch.manual_seed(0)
    model = make().double()
    optimizer = sgd(model, lr=0.01)
    with dualform.record(model, optimizer, tmp_path / "run", layers=names, dtype="float64") as recorder:
        for _ in range(3):
            recorder.tag(label=torch.arange(6))
            optimizer.zero_grad()
            model(inputs()).square().sum().backward()
            optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert (recorder.layers, memory.layers, memory.verify().ok) == (names, names, True)
    spotlight, last = memory.attend(model, inputs()), names[-1]
    assert [*spotlight] == names
    assert len(spotlight[last].top(1)) == len(spotlight[last].contribution(0).top(1)) == 6
    muted = memory.without(label=1).model(model)
    for name, parameter in memory.parameters(muted).items():
        torch.testing.assert_close(parameter.detach(), weights(memory.without(label=1))[name])


def weights(memory: dualform.Memory) -> dict[str, Tensor]:
    return {name: weight for layer in memory.layers for name, weight in memory.weights(layer).items()}


class Twins(nn.Module):
    """Has a module called `module`, with the names of others in it, and one called as torch's compiler calls models."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self._orig_mod = nn.ModuleDict({"fc": nn.Linear(5, 4)}), nn.ModuleDict({"fc": nn.Linear(4, 4)})
        self.fc = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.fc(self._orig_mod["fc"](self.module["fc"](inputs)))
        return output


def train(model: nn.Module, path: Path) -> dualform.Memory:
    optimizer = sgd(model, lr=0.01)
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for _ in range(3):
            recorder.tag(label=torch.arange(6))
            optimizer.zero_grad()
            model(numbers()).square().sum().backward()
            optimizer.step()
    memory = dualform.load(path)
    assert memory.verify().ok
    return memory


def test_modules_whose_names_look_like_those_of_wrappers_are_not_confused(tmp_path: Path) -> None:
    model = Twins().double()
    memory = train(model, tmp_path / "run")
    assert memory.layers == ["module.fc", "_orig_mod.fc", "fc"]
    rebuilt, parameters = weights(memory), dict(model.named_parameters())
    assert {*rebuilt} == {*parameters} == {*memory.parameters(model)}
    for name, parameter in parameters.items():
        torch.testing.assert_close(rebuilt[name], parameter.detach())
    torch.testing.assert_close(memory.model(model).state_dict(), model.state_dict())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(5, 4)), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(inputs))
        return output


def nested_compiled() -> nn.Module:
    model = Nested().double()
    model.encoder = compiled(model.encoder)
    return model


WRAPPED: dict[str, Callable[[], Any]] = {
    "compiled": lambda: compiled(Nested().double()),
    "compiled inside": nested_compiled,
    "parallel": lambda: nn.DataParallel(Nested().double()),
    "parallel and compiled": lambda: compiled(nn.DataParallel(Nested().double())),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(Nested().double()),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_a_run_of_the_plain_model_is_asked_with_a_wrapped_one_and_the_other_way_round(
    tmp_path: Path, wrap: Callable[[], Any]
) -> None:
    wrapped, plain = wrap(), Nested().double()
    memory, inputs = train(plain, tmp_path / "plain"), numbers()
    assert [*memory.attend(wrapped, inputs)] == memory.layers == ["encoder.0", "head"]
    assert {*memory.parameters(wrapped)} == {*dict(plain.named_parameters())}
    if not any(isinstance(module, nn.DataParallel) for module in wrapped.modules()):  # is not recorded
        of_wrapped = train(wrapped, tmp_path / "wrapped")
        assert [*of_wrapped.attend(plain, inputs)] == of_wrapped.layers == memory.layers


def test_a_wrapped_layer_is_called_after_its_class(tmp_path: Path) -> None:
    memory = train(nn.Linear(5, 3).double(), tmp_path / "run")
    parallel = nn.DataParallel(nn.Linear(5, 3).double())
    assert [*memory.attend(parallel, numbers())] == ["linear"]
    assert {*memory.parameters(parallel)} == {"weight", "bias"}

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

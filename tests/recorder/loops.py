"""Small networks and their training, for the tests of the recorder."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.store import Where


class Unknown(nn.Module):
    """y = x (1 + tanh w) + b, which is of no kind: it is not linear in w."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.weight.tanh()) + self.bias


def batch(size: int = 6, width: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(size, width, dtype=torch.float64), torch.randint(3, (size,))


def network(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), *middle, nn.Linear(4, 3)).double()


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def step(model: nn.Module, optimizer: torch.optim.Optimizer, size: int = 6) -> None:
    inputs, targets = batch(size)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def assert_exact(path: Path, model: nn.Module, steps: int) -> dualform.Memory:
    """The run is certified, and rebuilt weights are the model's."""
    memory = dualform.load(path)
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    assert certificate.steps_audited == memory.steps == steps
    parameters = dict(model.named_parameters())
    for layer in memory.layers:
        for name, weight in memory.weights(layer).items():
            assert_close(weight, parameters[name].detach(), rtol=1e-9, atol=1e-9)
    return memory


def record(model: nn.Module, optimizer: Any, path: Where, **options: Any) -> dualform.Recorder:
    return dualform.record(model, optimizer, path, **{"dtype": "float64", **options})

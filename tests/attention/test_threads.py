"""One memory, one model, many threads: everyone gets the answers of somebody who is alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dualform
from tests.recorder.loops import network, record, sgd, step

pytestmark = pytest.mark.slow

QUESTIONS: list[Callable[[dualform.Memory, nn.Module, Tensor], Any]] = [
    lambda memory, model, inputs: memory.attend(model, inputs)["0"].top(5)["score"],
    lambda memory, model, inputs: memory.attend(model, inputs)["3"].total(by="label")["total"],
    lambda memory, model, inputs: memory.attend(model, inputs)["3"].output().numpy(),
    lambda memory, model, inputs: memory.where(label=1).attend(model, inputs)["0"].top(3)["slot"],
    lambda memory, model, inputs: memory.without(label=2).weights("0")["0.weight"].numpy(),
    lambda memory, model, inputs: memory.until(step=7).attend(model, inputs)["0"].top(3)["score"],
    lambda memory, model, inputs: memory.attend(model, inputs)["3"].contribution(target=0).top(3)["score"],
    lambda memory, model, inputs: memory.verify().relative_error,
]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_same_memory_used_from_several_threads(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = network(nn.ReLU(), nn.Dropout(0.5))
    optimizer = sgd(model) if kind == "SGD" else torch.optim.Adam(model.parameters())
    with record(model, optimizer, tmp_path / "run") as recorder:
        for number in range(12):
            recorder.tag(label=torch.arange(6) % 3)
            step(model, optimizer)
            if number % 4 == 3:
                recorder.sync()
    inputs = [torch.randn(3, 5, dtype=torch.float64) for _ in range(4)]
    asked = [(question, given) for question in QUESTIONS for given in inputs] * 3
    alone = [np.array(ask(dualform.load(tmp_path / "run"), model, given)) for ask, given in asked]
    memory = dualform.load(tmp_path / "run")
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda one: np.array(one[0](memory, model, one[1])), asked))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)  # found in another way, a sum may round differently
    assert model.training  # and the model is as it was
    assert not any(module._forward_hooks for module in model.modules())

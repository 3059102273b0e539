"""Train a recorded classifier beside a dense float64 loop that is fed example by example: layers are held to that.

run = train(path, model, twin, inputs, "Adam", {})
run.memory.without(label=1)                     # run.reference.weight(name, {0, 2})
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import assume, settings
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from tests.dense import Dense, example_gradients
from tests.optimizers import make

CLASSES = 3
FEW = settings(max_examples=max(settings().max_examples // 8, 3))
_BATCH, _STEPS = 4, 5


@dataclass
class Trained:
    """A run, and the reference that knows its weights split by label."""

    model: nn.Module
    reference: Dense
    memory: dualform.Memory
    inputs: Tensor


def train(
    path: Path, model: nn.Module, twin: nn.Module, inputs: Tensor, optimizer_name: str, given: dict[str, Any]
) -> Trained:
    """Take a few steps in two chapters.

    Args:
        path: Where to record.
        model: The model that is recorded.
        twin: Another with the same parameters, which nobody records: autograd's gradients are the reference's.
        inputs: One for each example.
        optimizer_name: In torch.optim.
        given: Its options.
    """
    labels = torch.arange(len(inputs)) % CLASSES
    optimizer = make(optimizer_name, model.parameters(), 0.05, given)
    reference = Dense(model, optimizer_name)
    reference.start_warm(optimizer)  # Adagrad's sums may begin with something
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for step in range(_STEPS):
            ids = torch.randperm(len(inputs))[:_BATCH]
            recorder.tag(id=ids, label=labels[ids])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[ids]), labels[ids]).backward()
            twin.load_state_dict(model.state_dict())
            gradients = example_gradients(twin, inputs[ids], labels[ids], labels[ids].tolist(), 1.0)
            groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
            reference.step(gradients, {n: dict(groups[id(p)]) for n, p in model.named_parameters() if n in gradients})
            optimizer.step()
            if step == 2:
                recorder.sync()
        assert not recorder.notes
    return Trained(model, reference, dualform.load(path), inputs)


def check_in_a_folder(trained: Callable[[Path], Trained], check: Callable[[Trained], None]) -> None:
    """Train in a folder that is removed afterwards, and check a run whose gradients are well conditioned."""
    with TemporaryDirectory() as place:
        run = trained(Path(place) / "run")
        assume(run.reference.condition > 1e-6)
        check(run)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

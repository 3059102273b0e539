"""Loops with Accelerate: prepared models, optimisers and loaders are recorded as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.test_utils.testing import AccelerateTestCase
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dualform
from dualform.errors import RecordingError

pytestmark = pytest.mark.slow
ROWS, WIDTH, EPOCHS = 26, 5, 3


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Let each test have a precision of its own, which Accelerate keeps for the process."""
    AccelerateTestCase().tearDown()
    yield
    AccelerateTestCase().tearDown()


def data() -> TensorDataset:
    random = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(ROWS, WIDTH, generator=random), torch.randint(3, (ROWS,), generator=random))


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))


def loop(accelerator: Accelerator, where: Path | None, **options: Any) -> tuple[nn.Module, list[list[int]]]:
    """Train as Accelerate's users do, recorded or not; return the model, and the ids of each epoch."""
    model = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)
    batches: Any = DataLoader(data(), batch_size=4, shuffle=True, **options)
    torch.manual_seed(2)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    recorder = dualform.record(model, optimizer, where, dtype="float32").start() if where else None
    epochs = []
    for _ in range(EPOCHS):
        drawn: list[int] = []
        pairs: Any = recorder.ids(batches) if recorder else ((None, batch) for batch in batches)
        for ids, (inputs, labels) in pairs:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if recorder:
                assert torch.equal(data().tensors[0][ids], inputs)
                drawn += ids.tolist()
        epochs.append(drawn)
    if recorder:
        recorder.stop()
        assert not recorder.notes
    return accelerator.unwrap_model(model), epochs


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "accumulated": ({"gradient_accumulation_steps": 2}, {}),
    "accumulated, in bfloat16": ({"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}, {}),
    "seeds of its own": ({"dataloader_config": DataLoaderConfiguration(use_seedable_sampler=True)}, {}),
    "persistent workers": ({}, {"num_workers": 1, "persistent_workers": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_prepared_training_is_as_without_recording(name: str, tmp_path: Path) -> None:
    options, of_loader = CASES[name]
    expected, _ = loop(Accelerator(cpu=True, **options), None, **of_loader)
    model, epochs = loop(Accelerator(cpu=True, **options), tmp_path / "run", **of_loader)
    torch.testing.assert_close(parameters(model), parameters(expected), rtol=0, atol=0)
    assert all(sorted(drawn) == list(range(ROWS)) for drawn in epochs)
    assert epochs[0] != epochs[1] != epochs[2]

    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == EPOCHS * (4 if "accumulated" in name else 7)
    query = torch.randn(1, WIDTH)
    slots = memory.attend({"0": query})["0"].top(1000)
    keys = data().tensors[0][slots["id"].tolist()]
    close = 2e-2 if "bfloat16" in name else 1e-5
    torch.testing.assert_close(torch.tensor(slots["score"]), keys @ query[0], rtol=close, atol=close)
    assert sorted(slots["id"].tolist()) == sorted([*range(ROWS)] * EPOCHS)


def test_an_epoch_that_is_gone_on_with() -> None:
    accelerator = Accelerator(cpu=True)
    batches: Any = accelerator.prepare(DataLoader(data(), batch_size=4))
    model = network()
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with dualform.record(model, optimizer, dualform.store.InMemory()) as recorder:
        later = [ids.tolist() for ids, _ in recorder.ids(skip_first_batches(batches, 5))]
    assert later == [[20, 21, 22, 23], [24, 25]]


def test_batches_that_one_process_reads_for_all_are_refused(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    model, batches = accelerator.prepare(network(), DataLoader(data(), batch_size=4))
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with (
        dualform.record(model, optimizer, tmp_path / "run") as recorder,
        pytest.raises(RecordingError, match="dispatch_batches=False"),
    ):
        recorder.ids(batches)

"""Models with something in them that cannot be stored, or has no rows or shape yet: recorded, or refused by name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform.errors import RecordingError
from tests.recorder.loops import assert_exact, record, sgd

UNSTORED: dict[str, Callable[[], Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "uint16": lambda: torch.zeros(3, dtype=torch.uint16),
    "uint32": lambda: torch.zeros(3, dtype=torch.uint32),
    "uint64": lambda: torch.zeros(3, dtype=torch.uint64),
    "float8": lambda: torch.zeros(3).to(torch.float8_e4m3fn),
    "complex": lambda: torch.zeros(3, dtype=torch.complex64),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "meta": lambda: torch.zeros(3, device="meta"),
}


class Buffered(nn.Module):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3).double()
        self.register_buffer("odd", buffer)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.fc(inputs)
        return output


@pytest.mark.filterwarnings("ignore:.*quantize.*", "ignore:TypedStorage", "ignore:.*torch.ao.*")
@pytest.mark.parametrize("name", UNSTORED)
def test_a_buffer_that_no_snapshot_can_hold_is_left_out_with_a_note(tmp_path: Path, name: str) -> None:
    model = Buffered(UNSTORED[name]())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 5, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
    assert "left out of snapshots" in recorder.notes[0]
    assert "'odd'" in recorder.notes[0]
    memory = assert_exact(tmp_path / "run", model, 2)
    assert memory.notes == recorder.notes
    if name != "meta":  # of which there is nothing to copy
        memory.model(model)  # with the model's own buffer


class Itself(dualform.nn.MultiheadAttention):
    """Attention of a sequence to itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return super().forward(x, x, x)


EMPTY: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "linear": (lambda: nn.Linear(5, 3), lambda n: torch.randn(n, 5, dtype=torch.float64)),
    "embedding": (lambda: nn.Embedding(5, 3), lambda n: torch.randint(5, (n, 2))),
    "attention": (lambda: Itself(6, 2, batch_first=True), lambda n: torch.randn(n, 2, 6, dtype=torch.float64)),
    "lstm": (lambda: dualform.nn.LSTM(5, 3, batch_first=True), lambda n: torch.randn(n, 2, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_has_no_slots(tmp_path: Path, name: str) -> None:
    make, rows = EMPTY[name]
    model = make().double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for size in (3, 0, 3):
            optimizer.zero_grad()
            output = model(rows(size))
            (output[0] if isinstance(output, tuple) else output).square().sum().backward()
            optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == 3
    assert memory.verify().ok, str(memory.verify())


def test_a_lazy_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.LazyLinear(2))
    optimizer = sgd(model[0])
    with pytest.raises(RecordingError, match=r"'2\.weight' has no shape yet; run the model once before recording"):
        record(model, optimizer, tmp_path / "run")

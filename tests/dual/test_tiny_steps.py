"""Steps of one slot each: their gradients are made many at once, and are bit for bit those of steps one by one."""

from pathlib import Path

import pytest
import torch
from torch import nn

import dualform
from dualform.dual import replay
from dualform.slots import Slots

_STEPS = 60


class Tokens(nn.Module):
    """An embedding, a layer with a bias and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 6)
        self.output = nn.Linear(6, 3, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.hidden(self.embedding(tokens))
        return self.output(hidden.tanh())  # type: ignore[no-any-return]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Batches of one token, but for two of them; clipped in every third step; in two chapters."""
    torch.manual_seed(0)
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with dualform.record(model, optimizer, tmp_path / "run") as recorder:
        for step in range(_STEPS):
            tokens = torch.randint(5, (2 if step in (7, 50) else 1,))
            recorder.tag(id=tokens)
            optimizer.zero_grad()
            model(tokens).square().sum().backward()
            if step % 3 == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            if step == 20:
                recorder.sync()
    return tmp_path / "run"


def test_many_at_once_are_what_they_are_one_by_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_TOGETHER", 16)
    monkeypatch.setattr(replay, "_KEPT_BYTES", 0)
    together = dualform.load(run)
    assert together.verify().ok
    added = {layer: together.added(layer) for layer in together.layers}
    monkeypatch.setattr("dualform.dual.replay._Chapter._gradients_of_slots", lambda chapter, steps: None)
    alone = dualform.load(run)
    for layer in alone.layers:
        for name, expected in alone.added(layer).items():
            torch.testing.assert_close(added[layer][name], expected, rtol=0, atol=0)
    assert alone.verify().to_dict() == together.verify().to_dict()


def test_slots_of_many_steps_are_read_together(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], Slots.block

    def counted(slots: Slots, *arguments: object) -> object:
        reads.append(arguments)
        return read(slots, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "_TOGETHER", 10)
    monkeypatch.setattr(Slots, "block", counted)
    memory = dualform.load(run)
    memory.added("hidden")
    assert len(reads) <= 5 + 2 * 10  # a read for ten steps, and for each step near the two that have more slots


def test_muting_makes_the_gradients_of_whole_steps_once(run: Path) -> None:
    """Muted slots are left out, and all others add up as one by one."""
    memory = dualform.load(run)
    muted = memory.without(id=3)
    for layer in memory.layers:
        whole, kept, left_out = (view.added(layer) for view in (memory, muted, memory.where(id=3)))
        for name, total in whole.items():
            torch.testing.assert_close(kept[name] + left_out[name], total, rtol=1e-6, atol=1e-7)  # they are float32

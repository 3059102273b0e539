"""Work grows with the number of layers, not with its square: calls of functions are counted, at n and at 2n layers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dualform

_LAYERS = 60
_GROWTH = 2.1  # 2 is linear, 4 is quadratic


class Wide(nn.Module):
    """Many small layers, side by side, and norms behind them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(3) for _ in range(layers))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.layers, self.norms, strict=True)
        return torch.stack([norm(layer(rows)) for layer, norm in pairs]).square().sum(0)


def counted(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what some work returns, and how many functions it calls."""
    calls = 0

    def on_event(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        return work(), calls
    finally:
        sys.setprofile(None)


def calls_of_a_run(path: Path, layers: int, rates: Callable[[int], float]) -> dict[str, int]:
    """Count the calls of everything that is done with a run, from its beginning to its certificate."""
    torch.manual_seed(0)
    model, rows = Wide(layers), torch.rand(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    calls = {}

    def count(name: str, work: Callable[[], Any]) -> Any:
        result, calls[name] = counted(work)
        return result

    def step() -> None:
        recorder.tag(id=torch.arange(2))
        optimizer.zero_grad()
        model(rows).sum().backward()
        for number, layer in enumerate(model.layers):
            nn.utils.clip_grad_norm_(layer.parameters(), rates(number))
        optimizer.step()

    recorder = count("record", lambda: dualform.record(model, optimizer, path))
    count("start", recorder.start)
    count("step", step)
    count("sync", recorder.sync)
    count("stop", recorder.stop)
    count("resume", lambda: dualform.record(model, optimizer, path, resume=1).start().stop())
    memory = count("load", lambda: dualform.load(path))
    count("show", lambda: (str(memory), str(memory.coverage), memory.summary()))
    count("attend", lambda: memory.attend(model, rows))
    count("mute", lambda: memory.without(id=1).model(model))
    count("group weights", lambda: memory.group_weights(by="id"))
    certificate = count("verify", memory.verify)
    assert certificate.ok
    count("show certificate", lambda: (str(certificate), certificate.to_dict()))
    return calls


@pytest.mark.parametrize("clipping", ["all alike", "each layer apart"])
def test_work_grows_with_the_layers_and_not_with_their_square(tmp_path: Path, clipping: str) -> None:
    rates = (lambda number: 1e6) if clipping == "all alike" else (lambda number: 1e-3 * (1 + number))
    calls_of_a_run(tmp_path / "warm", 2, rates)  # imports, and whatever is made once
    once = calls_of_a_run(tmp_path / "once", _LAYERS, rates)
    twice = calls_of_a_run(tmp_path / "twice", 2 * _LAYERS, rates)
    growth = {name: twice[name] / once[name] for name in once}
    assert {name: ratio for name, ratio in growth.items() if ratio > _GROWTH} == {}


def test_layers_that_are_dropped_together_take_no_longer_than_their_number(tmp_path: Path) -> None:
    def calls(layers: int) -> int:
        torch.manual_seed(0)
        model, rows = Wide(layers), torch.rand(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with dualform.record(model, optimizer, tmp_path / str(layers), on_unexplained="drop") as recorder:
            model(rows).sum().backward()
            for layer in list(model.layers)[1:]:
                layer.weight.grad.mul_(torch.rand(3, 3))  # type: ignore[operator, union-attr]
            with pytest.warns(UserWarning, match="goes on without"):
                _, count = counted(optimizer.step)
            assert [name for name in recorder.layers if name.startswith("layers")] == ["layers.0"]
        return count

    calls(2)
    once, twice = calls(_LAYERS), calls(2 * _LAYERS)
    assert twice < _GROWTH * once, twice / once

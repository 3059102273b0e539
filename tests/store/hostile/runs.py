"""Tiny runs to be damaged and forged: one for each way in which a run is stored or replayed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import dualform
from dualform.store.codec import sparse
from tests.store.hostile.edits import set_texts
from tests.store.hostile.forge import Forged

_STEPS = 3  # one in the shard after the first, two in the last
_HOWEVER_NARROW = mock.patch.object(sparse, "_MIN_WIDTH", 1)  # zeros are left out of layers of few outputs, too


@_HOWEVER_NARROW
def smallest(path: Path) -> None:
    """As few bytes as a run can have that still has momentum, exponents, a text tag and two chapters.

    In the last one a value is zero, and left out.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with dualform.record(model, optimizer, path) as recorder:
        for number in range(2):
            recorder.tag(i=number, s=["a", "b"])
            _step(model, optimizer, torch.randn(2, 1) * torch.tensor([[1.0], [1.0 - number]]))
            if not number:
                recorder.sync()


def linear(path: Path) -> None:
    """A weight and a bias, SGD with momentum, float16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1))
    _train(path, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda: torch.randn(2, 2))


def adam(path: Path) -> None:
    """Replayed from the optimiser's state."""
    _elementwise(path, "Adam")


def adagrad(path: Path) -> None:
    """Replayed from a state that is there before the first step."""
    _elementwise(path, "Adagrad")


def nadam(path: Path) -> None:
    """Replayed with most numbers in a ledger line."""
    _elementwise(path, "NAdam")


def muon(path: Path) -> None:
    """What its own rounding adds is stored step by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    _train(path, model, torch.optim.Muon(model.parameters(), lr=0.1), lambda: torch.randn(2, 2))


@_HOWEVER_NARROW
def relu(path: Path) -> None:
    """Values without their zeros, and bits to spare in the last byte of a row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 9), nn.ReLU())
    _train(path, model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), lambda: torch.randn(2, 2))


def widest(path: Path) -> None:
    """One step of a layer whose values take much room, but for their zeros."""
    model = nn.Sequential(nn.Linear(1, 1 << 17, bias=False), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path) as recorder:
        recorder.tag(i=torch.arange(2))
        _step(model, optimizer, torch.ones(2, 1))


def lstm(path: Path) -> None:
    """Four parts in one layer."""
    torch.manual_seed(0)
    model = _Last(dualform.unfuse(nn.LSTM(2, 1, batch_first=True)))
    _train(path, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: torch.randn(2, 3, 2))


def embedding(path: Path) -> None:
    """One-hot keys, and a layer behind them whose keys never come again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    _train(path, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: torch.randint(3, (2,)))


def maps(path: Path) -> None:
    """Stored maps of two sizes, and patches that begin before the border."""
    torch.manual_seed(0)
    model, sizes = nn.Sequential(nn.Conv1d(1, 1, 2, padding=1)), iter((2, 3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _train(path, model, optimizer, lambda: torch.randn(2, 1, next(sizes)))


def diagonal(path: Path) -> None:
    """Outputs that see one entry of the key each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(3))
    _train(path, model, torch.optim.Adam(model.parameters(), lr=0.1), lambda: torch.randn(2, 3))


def merged(path: Path) -> None:
    """Sums over all slots of one tag."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1))
    _train(path, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: torch.randn(2, 2), merge="i")


def keys_only(path: Path) -> None:
    """No values, so no coefficients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _train(path, model, optimizer, lambda: torch.randn(2, 2), values=False, dtype="float32")


def normed(path: Path) -> None:
    """A number that is accounted for, running means step by step, and a frozen part that is stored once."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(1, affine=False)
    model = nn.Sequential(nn.Linear(2, 1), norm, _Power(), nn.Linear(1, 1).requires_grad_(False))
    _train(path, model, torch.optim.Adam(model.parameters(), lr=0.1), lambda: torch.randn(2, 2))


def halves(path: Path) -> None:
    """Gradients rounded to bfloat16, of two calls a pass."""
    torch.manual_seed(0)
    model = _Twice(nn.Linear(2, 1))
    with torch.autocast("cpu", torch.bfloat16):
        _train(path, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: torch.randn(2, 2))


def adam_halves(path: Path) -> None:
    """The same, replayed."""
    torch.manual_seed(0)
    model = _Twice(nn.Linear(2, 1))
    with torch.autocast("cpu", torch.bfloat16):
        _train(path, model, torch.optim.Adam(model.parameters(), lr=0.1), lambda: torch.randn(2, 2))


def untagged(path: Path) -> None:
    """Slots without a value of each tag: the first of each shard, and of the texts in the last one all."""
    linear(path)
    forged = Forged.of(path)
    for tag in ("i", "s", "t"):
        for shard in forged.shards[1:]:
            column = shard.tensors[f"tags/0/{tag}"]
            missing = np.arange(len(column)) == 0
            column[missing] = 0
            shard.tensors[f"untagged/0/{tag}"] = missing
    last = forged.shards[2]
    set_texts([], shard=2)(forged)
    last.tensors["tags/0/s"][:], last.tensors["untagged/0/s"][:] = 0, True
    forged.write(path)


class _Handing(nn.Module):
    """Two layers, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, given: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.inner(given) + state
        return self.outer(hidden), hidden


def _handed_on(model: nn.Module, batch: Any, state: Any) -> Any:
    out, hidden = model(batch["x"], torch.zeros(2, 2) if state is None else state[0])
    return out.square(), (hidden, (hidden[0],))


def _of_recipe(step: int) -> dict[str, Any]:
    x = torch.randn(2, 2, generator=torch.Generator().manual_seed(step))
    return {"id": torch.arange(2), "x": x, "i": torch.arange(2), "s": ["a", "b"], "t": [True, False]}


def _pooled(model: nn.Module, batch: Any) -> Tensor:
    out: Tensor = model(batch["x"].reshape(2, 1, 2)).square()
    return out


RECIPES = {
    "recipe": dualform.Recipe(
        _Handing, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), _of_recipe, _handed_on,
        tags=["i", "s", "t"],
    ),
    "maps_made": dualform.Recipe(
        lambda: nn.Sequential(nn.Conv1d(1, 1, 2, padding=1)),
        lambda model: torch.optim.Adam(model.parameters(), lr=0.1), _of_recipe, _pooled, tags=["i", "s", "t"],
    ),
}  # fmt: skip


def recipe(path: Path) -> None:
    """A layer whose slots are stored, one whose slots are made again, and a state that is handed on."""
    keep = {"inner": "snapshots", "outer": "slots"}
    RECIPES["recipe"].train(path, 2, keep=keep, every=1, threads=1, about={"n": 1})


def maps_made(path: Path) -> None:
    """Maps that are made again."""
    RECIPES["maps_made"].train(path, 2, keep="snapshots", every=1, threads=1, about={"n": 1})


_MADE = (
    linear, relu, adam, adagrad, nadam, muon, lstm, embedding, maps, diagonal, merged, keys_only, normed, untagged,
    halves, adam_halves, recipe, maps_made,
)  # fmt: skip
RUNS: Mapping[str, Callable[[Path], None]] = {made.__name__: made for made in _MADE}


class _Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: Tensor) -> Tensor:
        output: Tensor = self.inner(given) + self.inner(given.flip(1))
        return output


class _Power(nn.Module):
    """Of no kind: it is not linear in its number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, given: Tensor) -> Tensor:
        return given * self.weight.exp()


class _Last(nn.Module):
    """What an LSTM says last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: Tensor) -> Tensor:
        output: Tensor = self.inner(given)[0]
        return output[:, -1]


def _elementwise(path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, weight_decay=0.1)
    _train(path, model, optimizer, lambda: torch.randn(2, 2))


def _train(path: Path, model: nn.Module, optimizer: Any, batch: Callable[[], Tensor], **options: Any) -> None:
    """Every slot has a number, a text and a truth."""
    with dualform.record(model, optimizer, path, about={"n": 1}, **options) as recorder:
        for number in range(_STEPS):
            recorder.tag(i=torch.arange(2), s=["a", "b"], t=[True, False])
            _step(model, optimizer, batch())
            if not number:
                recorder.sync()


def _step(model: nn.Module, optimizer: Any, inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()

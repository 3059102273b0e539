"""Nothing is written that cannot be read: what would be is refused at the beginning, or stored where there is room."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import RecordingError, StorageError
from dualform.store import InMemory, Run, schema, shard_file
from tests.recorder.loops import network, record, sgd, step


def test_as_many_texts_as_there_are_slots(tmp_path: Path) -> None:
    """As a header they would take more than 100 MB."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1))
    optimizer, texts = sgd(model), [f"the sentence number {number} of many, " * 13 for number in range(204_800)]
    with record(model, optimizer, tmp_path / "run", provenance=False) as recorder:
        for start in range(0, len(texts), 51_200):
            recorder.tag(text=texts[start : start + 51_200])
            optimizer.zero_grad()
            model(torch.rand(51_200, 1)).mean().backward()
            optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.slots("0")) == (4, len(texts))
    assert memory.where(text=texts[100_000]).slots("0") == 1
    table = memory.attend({"0": torch.ones(1, 1)})["0"].top(5)
    assert table["text"].tolist() == [texts[slot] for slot in table["slot"]]


def test_texts_are_stored_once_for_all_layers() -> None:
    torch.manual_seed(0)
    model, run = network(nn.ReLU()), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        recorder.tag(name=["b", "a", "b", "é\n", "", "a"])
        step(model, optimizer)
    shard = Run(run).shards[1]
    assert shard.strings("name").tolist() == ["b", "a", "é\n", ""]
    assert shard["texts/name"].tobytes().decode() == "baé\n"
    for layer in ("0", "2"):
        assert shard.decoded(layer, "name").tolist() == ["b", "a", "b", "é\n", "", "a"]


def test_a_header_that_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = network(nn.ReLU())
    optimizer = sgd(model)
    message = r"its header takes .* bytes, more than the .* that are read. The first 1 "
    with pytest.raises(StorageError, match=message), record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        recorder.sync()
        monkeypatch.setattr(shard_file, "MAX_HEADER_BYTES", 1000)
        step(model, optimizer)
        recorder.sync()
    monkeypatch.undo()
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.verify().ok) == (1, True)


def test_what_is_said_about_a_run_is_not_too_large_to_be_read(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    about = {"notes": "a" * (schema.MAX_HEADER_BYTES + 1)}
    with pytest.raises(StorageError, match="would take 100,.* bytes, more than the 100,000,000 that are read: keep"):
        record(model, sgd(model), tmp_path / "run", about=about).start()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("about", [{"name": os.fsdecode(b"caf\xe9")}, {os.fsdecode(b"\xff"): 1}, {"x": float("nan")}])
def test_what_json_cannot_hold_is_refused_at_once(tmp_path: Path, about: dict[str, Any]) -> None:
    model = network(nn.ReLU())
    with pytest.raises(RecordingError, match="about must be what JSON can hold"):
        record(model, sgd(model), tmp_path / "run", about=about)


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "", "a" * 100_000, "ünïcode"])
def test_an_exception_may_have_any_name(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = network(nn.ReLU())
    optimizer = sgd(model)
    odd = type(name, (Exception,), {})
    with pytest.raises(odd), record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
        raise odd
    memory = dualform.load(tmp_path / "run")
    assert (memory.steps, memory.verify().ok) == (1, True)
    ended = memory.summary()["ended"]
    assert ended.isprintable()
    assert ended == name or not name.isprintable()


class Slashed(nn.Module):
    """Layers whose names and tags could be parted in two ways: a/b, c and a, b/c."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "a/b"):
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            inputs = layer(inputs)
        return inputs


def test_names_with_slashes_are_told_apart_or_refused_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Slashed()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for name in ("b/c", "c/", "/"):
            with pytest.raises(RecordingError, match=f"a tag cannot be called '{name}': leave out the slash"):
                recorder.tag(**{name: 1})
        recorder.tag(b=torch.arange(6), c=torch.arange(6) + 6)
        optimizer.zero_grad()
        model(torch.rand(6, 3)).sum().backward()
        optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    for layer in ("a", "a/b"):
        np.testing.assert_array_equal(memory.visits(layer, by="b")["b"], np.arange(6))
        np.testing.assert_array_equal(memory.visits(layer, by="c")["c"], np.arange(6) + 6)

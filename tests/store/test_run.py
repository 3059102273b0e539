"""Runs on disk: their longest valid prefix, foreign and damaged files, the pinned format."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn

import dualform
from dualform.errors import RunError, RunExists
from dualform.store import Run
from dualform.store.schema import VERSION
from tests.recorder.loops import network, record, sgd, step

Array = NDArray[Any]

COLUMNS = ("factors", "keys", "pass_rows", "pass_step", "values")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three chapters of two steps each, and the state the run began with."""
    torch.manual_seed(0)
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for chapter in range(3):
            for _ in range(2):
                recorder.tag(id=torch.arange(6) + chapter, task="a" if chapter else "b")
                step(model, optimizer)
            recorder.sync()
    return tmp_path / "run"


def damage_told(expected: bool) -> AbstractContextManager[object]:
    return pytest.warns(UserWarning, match="what comes after step . is left out") if expected else nullcontext()


def shard(run: Path, index: int) -> Path:
    return run / f"shard-{index:06d}.safetensors"


def test_a_run_is_files_anyone_can_read(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["format"] == "dualform"
    assert manifest["version"] == VERSION
    assert [layer["name"] for layer in manifest["layers"]] == ["0", "2"]
    tensors = load_file(shard(run, 1))
    assert sorted(tensors) == sorted([
        "audit/0", "audit/2", "ledger/0.bias", "ledger/0.weight", "ledger/2.bias", "ledger/2.weight",
        *(f"slots/{layer}/{column}" for layer in "02" for column in COLUMNS),
        "slots/0/key_index",
        *(f"state/parameters/{layer}.{part}" for layer in "02" for part in ("weight", "bias")),
        *(f"state/optimizers/0/{layer}.{part}/momentum_buffer" for layer in "02" for part in ("weight", "bias")),
        *(f"tags/0/{tag}" for tag in ("id", "task")),
        "texts/task", "text_ends/task",
    ])  # fmt: skip
    assert tensors["slots/0/values"].shape == (12, 4)
    assert tensors["tags/0/id"].dtype == np.int8
    with safe_open(shard(run, 1), framework="np") as file:
        info = json.loads(file.metadata()["dualform"])
    assert (info["first_step"], info["last_step"], info["ended"]) == (0, 2, None)
    assert info["same"] == {"tags/2/id": "tags/0/id", "tags/2/task": "tags/0/task"}
    assert (tensors["texts/task"].tobytes(), tensors["text_ends/task"].tolist()) == (b"b", [1])


def after_two_steps(birth: Mapping[str, Array], chapter: Mapping[str, Array], values: Array) -> Array:
    """What docs/internals/format.md promises: W_2 = W_0 + sum of coefficients times E^T X."""
    keys = chapter["slots/0/keys"][chapter["slots/0/key_index"]]
    weighted = values * np.repeat(chapter["slots/0/factors"][:, :1], chapter["slots/0/pass_rows"], axis=0)
    step_of_slot = np.repeat(chapter["slots/0/pass_step"], chapter["slots/0/pass_rows"])
    lr, momentum = chapter["ledger/0.weight"][0, 1:3]
    weight, velocity = birth["state/parameters/0.weight"].copy(), 0.0
    for number in (0, 1):
        chosen = step_of_slot == number
        velocity = momentum * velocity + weighted[chosen].T @ keys[chosen]
        weight -= lr * velocity
    return weight


def test_the_gradient_can_be_rebuilt_with_nothing_but_numpy(run: Path) -> None:
    birth, chapter = load_file(shard(run, 0)), load_file(shard(run, 1))
    weight = after_two_steps(birth, chapter, chapter["slots/0/values"])
    np.testing.assert_allclose(weight, chapter["state/parameters/0.weight"], atol=1e-12)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Two steps of a layer wide enough for its zeros to be left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 70), nn.ReLU(), nn.Linear(70, 3)).double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "wide"):
        for _ in range(2):
            step(model, optimizer)
    return tmp_path / "wide"


def test_values_without_their_zeros_are_made_whole_as_the_page_says(wide: Path) -> None:
    birth, chapter = load_file(shard(wide, 0)), load_file(shard(wide, 1))
    assert chapter["slots/0/values"].ndim == 1
    page = (Path(__file__).parents[2] / "docs/internals/format.md").read_text()
    (recipe,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "value_mask" in code)
    named: dict[str, Any] = {"np": np, "chapter": chapter, "d_out": 70}
    exec(recipe, named)
    weight = after_two_steps(birth, chapter, named["values"])
    np.testing.assert_allclose(weight, chapter["state/parameters/0.weight"], atol=1e-12)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_the_longest_valid_prefix_opens(run: Path, lost: int) -> None:
    shard(run, lost).unlink()
    with damage_told(lost < 4):
        memory = dualform.load(run)
    assert memory.steps == 2 * min(lost - 1, 3)
    assert "not closed" in repr(memory)
    certificate = memory.verify()
    assert certificate.steps_certified == memory.steps
    assert certificate.relative_error < 1e-9


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_shard_cut_short_ends_the_prefix(run: Path, keep: int) -> None:
    content = shard(run, 2).read_bytes()
    shard(run, 2).write_bytes(content[:keep])
    with damage_told(True):
        memory = dualform.load(run)
    assert memory.steps == 2
    assert "shard-000002" in repr(memory)
    assert not memory.verify().ok


def test_a_changed_byte_is_found_by_verify(run: Path) -> None:
    content = bytearray(shard(run, 2).read_bytes())
    content[-1] ^= 1
    shard(run, 2).write_bytes(content)
    with pytest.raises(RunError, match=r"shard-000002.safetensors is damaged: the checksum of .* does not fit"):
        dualform.load(run).verify()


def test_a_changed_header_is_found_at_once(run: Path) -> None:
    content = shard(run, 2).read_bytes()
    shard(run, 2).write_bytes(content.replace(b"first_step", b"First_step", 1))
    assert Run(run).steps == 2


def test_a_shard_of_another_run_ends_the_prefix(run: Path, tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "other") as recorder:
        for _ in range(2):
            step(model, optimizer)
            recorder.sync()
    shard(run, 2).write_bytes(shard(tmp_path / "other", 2).read_bytes())
    opened = Run(run)
    assert opened.steps == 2
    assert opened.unread is not None
    assert "another run" in opened.unread


def test_what_is_not_a_run_says_so(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunError, match="no such directory"):
        dualform.load(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(RunError, match="is not a dualform run: it has no manifest.json"):
        dualform.load(tmp_path / "foreign")
    manifest = run / "manifest.json"
    content = manifest.read_text()
    for text, message in [
        ("", "manifest.json is a corrupt manifest: Expecting value"),
        ("[]", "not the manifest of a dualform run"),
        ('{"format": "dualform", "version": 99}', f"format version 99, this dualform reads {VERSION}: upgrade"),
        ('{"format": "dualform", "version": 2}', "recorded by an older dualform: record again"),
        (content.replace("float64", "float32", 1), "damaged or edited"),
    ]:
        manifest.write_text(text)
        with pytest.raises(RunError, match=message):
            dualform.load(run)
    manifest.write_text(content)
    shard(run, 0).unlink()
    with pytest.raises(RunError, match="no readable shard"):
        dualform.load(run)


def test_reading_while_recording_and_a_second_writer(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        recorder.sync()
        step(model, optimizer)
        assert dualform.load(tmp_path / "run").verify().relative_error < 1e-9
        assert dualform.load(tmp_path / "run").steps == 1
        with pytest.raises(RunExists, match="another process is recording"):
            record(model, sgd(model), tmp_path / "run", overwrite=True).__enter__()
    assert dualform.load(tmp_path / "run").steps == 2


@pytest.mark.slow
def test_a_killed_process_leaves_what_was_sealed(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.recorder.loops import network, record, sgd, step
model = network(); optimizer = sgd(model)
with record(model, optimizer, {str(tmp_path / "run")!r}) as recorder:
    step(model, optimizer); recorder.sync(); step(model, optimizer)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == 1
    assert memory.verify().ok
    assert "not closed" in repr(memory)
    model = network()
    with record(model, sgd(model), tmp_path / "run", overwrite=True):  # the lock died with its process
        pass


def test_opening_a_run_needs_no_torch(run: Path) -> None:
    script = f"import sys; from dualform.store import Run; Run({str(run)!r}); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

"""Runs of every format version there was are read by this one, and the current one is written as it always was."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import RunError
from dualform.store import Run
from dualform.store.schema import VERSION
from tests.store.golden.make import RUNS, ask

HERE = Path(__file__).parent
VERSIONS = sorted(int(one.name) for one in HERE.iterdir() if one.name.isdigit())
SAVED = [(version, name) for version in VERSIONS for name in json.loads((HERE / f"{version}/answers.json").read_text())]


def assert_same(found: object, saved: object) -> None:
    """Equal, but for the last bits that another processor may sum up in another order."""
    if isinstance(found, dict) and isinstance(saved, dict):
        assert found.keys() == saved.keys()
        for name in found:
            assert_same(found[name], saved[name])
    elif isinstance(saved, list) and any(isinstance(one, float | list) for one in saved):
        np.testing.assert_allclose(np.array(found), np.array(saved), rtol=1e-6, atol=1e-6)
    else:
        assert found == saved


def test_the_current_version_has_golden_runs() -> None:
    assert VERSION in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_the_bytes_they_were(version: int) -> None:
    lines = (HERE / f"{version}/SHA256SUMS").read_text().splitlines()
    for digest, name in (line.split() for line in lines):
        assert hashlib.sha256((HERE / str(version) / name).read_bytes()).hexdigest() == digest, name
    files = {str(one.relative_to(HERE / str(version))) for one in HERE.glob(f"{version}/*/*")}
    assert files == {line.split()[1] for line in lines}


@pytest.mark.parametrize(("version", "name"), SAVED)
def test_they_are_read_and_answer_as_they_did(version: int, name: str) -> None:
    saved = json.loads((HERE / f"{version}/answers.json").read_text())[name]
    assert Run(HERE / f"{version}/{name}").unread is None
    assert_same(ask(HERE / f"{version}/{name}"), saved)


def test_one_of_them_is_without_its_zeros() -> None:
    _, *chapters = Run(HERE / f"{VERSION}/zeros").shards
    assert all("slots/wide/value_mask" in shard for shard in chapters)


@pytest.mark.parametrize("name", RUNS)
def test_the_same_steps_are_written_as_the_same_bytes(tmp_path: Path, name: str) -> None:
    RUNS[name](tmp_path / name)
    for saved in (HERE / f"{VERSION}/{name}").iterdir():
        assert (tmp_path / name / saved.name).read_bytes() == saved.read_bytes(), saved.name


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    newer = json.loads((HERE / f"{VERSION}/sgd/manifest.json").read_text()) | {"version": VERSION + 1}
    (tmp_path / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(
        RunError, match=rf"format version {VERSION + 1}, this dualform reads {VERSION}: upgrade with pip"
    ):
        Run(tmp_path)

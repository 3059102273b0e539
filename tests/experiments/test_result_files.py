"""Results replace only results, and only if told."""

from pathlib import Path

import pytest

from dualform.errors import RunExists
from dualform.experiments.result_files import prepare_directory


def results(out: Path) -> Path:
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "old.png").touch()
    (out / "results.json").write_text('{"experiment": "single"}')
    (out / "notes.txt").touch()
    return out


def test_new_and_empty_directories_are_fine(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "new", overwrite=False)
    prepare_directory(tmp_path, overwrite=False)
    assert not list(tmp_path.iterdir())  # room is looked for, nothing is made yet


def test_results_stay_unless_told(tmp_path: Path) -> None:
    out = results(tmp_path / "out")
    with pytest.raises(RunExists, match="--overwrite"):
        prepare_directory(out, overwrite=False)
    assert (out / "figures" / "old.png").exists()
    prepare_directory(out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt"]  # which we did not make


def test_a_run_that_was_interrupted_may_go(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "charlm"
    run.mkdir(parents=True)
    (run / "manifest.json").touch()
    with pytest.raises(RunExists, match="--overwrite"):
        prepare_directory(tmp_path, overwrite=False)
    prepare_directory(tmp_path, overwrite=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, "no json", "[]", "3"])
def test_anything_else_is_never_touched(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "thesis.tex").touch()
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(RunExists, match="other files than results"):
        prepare_directory(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunExists, match="is a file"):
        prepare_directory(tmp_path / "file", overwrite=True)

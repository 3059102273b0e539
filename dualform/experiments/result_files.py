"""The files in an experiment's directory of results, and which of them may be replaced."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dualform.errors import RunExists

DOCUMENT, MARKDOWN, PAGE = "results.json", "results.md", "index.html"
FIGURES, RUNS = "figures", "runs"


@contextmanager
def run_directory(out: Path, keep: bool) -> Iterator[Path]:
    """Yield the directory for runs in a directory of results, which is gone afterwards unless runs are kept."""
    if keep:
        (out / RUNS).mkdir(exist_ok=True)
        yield out / RUNS
        return
    with TemporaryDirectory(prefix=".run-", dir=out, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def prepare_directory(out: Path, overwrite: bool) -> None:
    """Remove old results from a directory if `overwrite` is set; raise if it holds anything that must stay."""
    if out.exists() and not out.is_dir():
        raise RunExists(f"{out} is a file; results need a directory of their own")
    if not out.is_dir() or not any(out.iterdir()):
        return
    # Results, or the run of an experiment that was interrupted.
    interrupted = [path.name for path in out.iterdir()] == [RUNS]
    try:
        if interrupted:
            holds_results = all((run / "manifest.json").is_file() for run in (out / RUNS).iterdir())
        else:
            holds_results = "experiment" in json.loads((out / DOCUMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        holds_results = False
    if not holds_results:
        raise RunExists(f"{out} holds other files than results; choose another directory with --out")
    if not overwrite:
        raise RunExists(f"{out} holds results already; choose another directory with --out, or pass --overwrite")
    for name in (DOCUMENT, MARKDOWN, PAGE):
        (out / name).unlink(missing_ok=True)
    for name in (FIGURES, RUNS):
        shutil.rmtree(out / name, ignore_errors=True)

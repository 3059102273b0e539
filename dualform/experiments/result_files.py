"""Room for results: an empty directory, or one whose old results may go."""

import json
import shutil
from pathlib import Path

from dualform.errors import RunExists

DOCUMENT, MARKDOWN, PAGE = "results.json", "results.md", "index.html"
FIGURES, RUNS = "figures", "runs"


def prepare_directory(out: Path, overwrite: bool) -> None:
    """Results go only if told, and anything else never."""
    if out.exists() and not out.is_dir():
        raise RunExists(f"{out} is a file; results need a directory of their own")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not _holds_results(out):
        raise RunExists(f"{out} is not empty, and not with results; choose another directory with --out")
    if not overwrite:
        raise RunExists(f"{out} holds results already; choose another directory with --out, or pass --overwrite")
    for name in (DOCUMENT, MARKDOWN, PAGE):
        (out / name).unlink(missing_ok=True)
    for name in (FIGURES, RUNS):
        shutil.rmtree(out / name, ignore_errors=True)


def _holds_results(out: Path) -> bool:
    """Results, or the run of an experiment that did not come to an end."""
    if [path.name for path in out.iterdir()] == [RUNS]:
        return all((run / "manifest.json").is_file() for run in (out / RUNS).iterdir())
    try:
        return "experiment" in json.loads((out / DOCUMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False

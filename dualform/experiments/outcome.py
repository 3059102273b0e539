"""What comes of an experiment: a page for people, the same as Markdown, and everything as data."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualform.datasets.download import Progress
from dualform.experiments.page import Section, to_html, to_markdown
from dualform.experiments.result_files import DOCUMENT, MARKDOWN, PAGE

Stage = Callable[[str, int], AbstractContextManager[Callable[..., None]]]  # what begins, and of how many steps


def silent_stage(what: str, steps: int) -> AbstractContextManager[Callable[..., None]]:
    """A stage that nobody watches."""
    return nullcontext(lambda step, note="": None)


def per_cent(done: Callable[..., None]) -> Progress:
    """A stage of a hundred steps, told the bytes of a file that has to be downloaded."""
    return lambda file, so_far, total: done(100 * so_far // (total or so_far) - 1)


@dataclass(frozen=True)
class Outcome:
    """Where the results are, and what is in them."""

    out: Path
    document: dict[str, Any]
    sections: Sequence[Section]

    @property
    def certified(self) -> bool:
        """Nothing that could be certified failed to be."""
        return all(one["ok"] for one in self.document.get("certificates", []))


def write(out: Path, title: str, document: dict[str, Any], sections: Sequence[Section]) -> Outcome:
    """Put the results into a directory."""
    (out / DOCUMENT).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / MARKDOWN).write_text(to_markdown(title, sections), encoding="utf-8")
    (out / PAGE).write_text(to_html(title, sections), encoding="utf-8")
    return Outcome(out, document, sections)

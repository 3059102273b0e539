"""Write the results of an experiment: as a web page, as Markdown, and as JSON."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualform.datasets.download import Progress
from dualform.experiments.page import Section, to_html, to_markdown
from dualform.experiments.result_files import DOCUMENT, MARKDOWN, PAGE

Stage = Callable[[str, int], AbstractContextManager[Callable[..., None]]]  # called with a description, and its steps


def silent_stage(what: str, steps: int) -> AbstractContextManager[Callable[..., None]]:
    """Ignore the progress of a stage."""
    return nullcontext(lambda step, note="": None)


def per_cent(done: Callable[..., None]) -> Progress:
    """Return the progress of a download as that of a stage of a hundred steps."""
    return lambda file, so_far, total: done(100 * so_far // (total or so_far) - 1)


@dataclass(frozen=True)
class Outcome:
    """Where the results are, and what is in them."""

    out: Path
    document: dict[str, Any]
    sections: Sequence[Section]

    @property
    def certified(self) -> bool:
        """Whether no certificate failed."""
        return all(certificate["ok"] for certificate in self.document.get("certificates", []))


def write(out: Path, title: str, document: dict[str, Any], sections: Sequence[Section]) -> Outcome:
    """Write the results into a directory.

    Args:
        out: the directory.
        title: of the page.
        document: results as data.
        sections: results as parts of the page.
    """
    (out / DOCUMENT).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / MARKDOWN).write_text(to_markdown(title, sections), encoding="utf-8")
    (out / PAGE).write_text(to_html(title, sections), encoding="utf-8")
    return Outcome(out, document, sections)

"""Print JSON for programs, without progress bars."""

import json
from typing import TYPE_CHECKING, Any

from dualform.strict_json import finite

if TYPE_CHECKING:
    from rich.console import Console


def quiet(out: "Console", as_json: bool) -> "Console":
    """Return the console for progress: a silent one if the output is JSON."""
    from rich.console import Console

    return Console(quiet=True, force_terminal=False) if as_json else out


def print_json(document: Any) -> None:
    """Print a document as JSON; NaN and infinity become null."""
    print(json.dumps(finite(document), indent=2, allow_nan=False))

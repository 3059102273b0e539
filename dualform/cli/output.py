"""Output for programs: JSON, and no progress beside it."""

import json
from typing import TYPE_CHECKING, Any

from dualform.strict_json import finite

if TYPE_CHECKING:
    from rich.console import Console


def quiet(out: "Console", as_json: bool) -> "Console":
    """Where progress goes: nowhere when a program reads."""
    from rich.console import Console

    return Console(quiet=True, force_terminal=False) if as_json else out


def print_json(document: Any) -> None:
    print(json.dumps(finite(document), indent=2, allow_nan=False))

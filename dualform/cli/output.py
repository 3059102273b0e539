"""Output for programs: JSON, and no progress beside it."""

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def quiet(out: "Console", as_json: bool) -> "Console":
    """Where progress goes: nowhere when a program reads."""
    from rich.console import Console

    return Console(quiet=True, force_terminal=False) if as_json else out


def print_json(document: Any) -> None:
    print(json.dumps(finite(document), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; what is not a number is null."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

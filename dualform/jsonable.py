"""Answers as JSON can hold them."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; what is not a number is null."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

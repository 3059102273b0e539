"""Read sizes as people write them: `nbytes_of("20 GB")`."""

import re

from dualform.errors import QueryError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def nbytes_of(size: int | str) -> int:
    """Return a number of bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", size.upper()) if isinstance(size, str) else None
    if match is None or match[2] not in _UNITS:
        raise QueryError(f'a size is a number of bytes, or written as "500 MB" or "20 GB", not {size!r}')
    return int(float(match[1]) * _UNITS[match[2]])

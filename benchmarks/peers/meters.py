"""What is measured with: seconds of a call, resident memory in MB, bytes of a directory.

    forget_peak()
    result, seconds = timed(model, images)
    peak()                                  # since `forget_peak`; mapped files count as far as they were read

The peak is the kernel's own (VmHWM), so that nothing between two looks is missed. That of `getrusage` would not do
where there is a choice: a new process inherits it from the one that started it.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import ParamSpec, TypeVar

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def timed(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> tuple[Result, float]:
    """Call a function. Returns its result, and its seconds."""
    began = perf_counter()
    result = work(*args, **kwargs)
    return result, perf_counter() - began


def resident() -> float:
    """Return the resident memory of this process, in MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


def peak() -> float:
    """Return the highest resident memory since `forget_peak`, in MB."""
    if not _STATUS.exists():
        return _peak_since_start()
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def forget_peak() -> None:
    """Reset the peak; if the kernel does not allow it, peaks are those since the start."""
    with suppress(OSError):
        _CLEAR.write_text("5")


def _peak_since_start() -> float:
    import resource  # not there on Windows

    units = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units / 1e6


def size(path: Path) -> int:
    """Return the bytes of all files below a path."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

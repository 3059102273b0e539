"""A process with little memory: a control group of its own, or what comes closest where that is not allowed.

    with group(1 << 30) as (prefix, said):                      # `said` is what was done, for the report
        subprocess.run([*prefix, sys.executable, "-m", "somewhere"])

All pages of a group count, those of files too: what does not fit is read again. Without a group, `limit_data`
bounds what a process allocates, but the system may keep every page it has read.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

_MOUNTS = {  # where the memory controller is, and the file that takes a limit
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
_STATUS = Path("/proc/self/status")
_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
NO_GROUP = "no control group: allocations are limited (RLIMIT_DATA), the page cache is not"


@contextmanager
def group(nbytes: int) -> Iterator[tuple[list[str], str]]:
    """Yield the prefix of a command that runs it with a limit of memory, and the kind of limit."""
    for mount, name in _MOUNTS.items():
        made = _make(mount / f"dualform-{os.getpid()}", name, nbytes)
        if made is not None:
            try:
                yield ["/bin/sh", "-c", _JOIN, str(made)], f"control group ({name})"
            finally:
                _remove(made)
            return
    yield [], NO_GROUP


def _make(path: Path, name: str, nbytes: int) -> Path | None:
    """Make a new control group; None if that is not allowed, or there is no such controller."""
    try:
        path.mkdir()
    except OSError:
        return None
    try:
        if not (path / name).exists():  # a file of ours would be made where the kernel has none
            raise FileNotFoundError(name)
        (path / name).write_text(str(nbytes))
    except OSError:
        _remove(path)
        return None
    return path


def _remove(path: Path) -> None:
    """Remove a control group; a process that has ended may still be counted for a moment."""
    for _ in range(50):
        with suppress(OSError):
            path.rmdir()
            return
        sleep(0.02)


def limit_data(nbytes: int) -> bool:
    """Limit how many more bytes this process may allocate, private file maps included. Returns whether it worked."""
    if sys.platform == "win32":
        return False
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + nbytes, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return False
    return True


def status(name: str) -> int:
    """Return an entry of the kernel's status of this process, "RssAnon" or "VmData", in bytes; 0 if there is none."""
    if not _STATUS.exists():
        return 0
    lines = (line.split() for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return next((int(words[1]) << 10 for words in lines), 0)

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
    """What to put before a command for it to run in a new group of so many bytes, and which kind that is."""
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
    """None where that is not allowed, or there is no such controller."""
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
    """A process that has ended may still be counted for a moment."""
    for _ in range(50):
        with suppress(OSError):
            path.rmdir()
            return
        sleep(0.02)


def limit_data(nbytes: int) -> bool:
    """Let this process allocate so many bytes more; private maps of files count, too. False if it cannot be."""
    if sys.platform == "win32":
        return False
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + nbytes, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return False
    return True


def status(name: str) -> int:
    """Bytes, by what the kernel says of this process: "RssAnon", "VmData"; 0 where it says nothing."""
    if not _STATUS.exists():
        return 0
    found = (line.split() for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return next((int(words[1]) << 10 for words in found), 0)

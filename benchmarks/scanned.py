"""The limited process of `benchmarks.out_of_core`: reads a run plainly and scans it, in turns; or asks a batch.

python -m benchmarks.scanned RUN LIMIT turns REPETITIONS        # prints JSON; LIMIT 0: it is limited already
python -m benchmarks.scanned RUN LIMIT batch QUERIES
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

import dualform
from benchmarks.memory_limit import limit_data, status
from benchmarks.peers.meters import timed
from dualform import Memory, Top

_BUFFER = 4 << 20
_INTERVAL = 0.02  # seconds between two looks at memory
_IO = Path("/proc/self/io")


@dataclass(frozen=True)
class Scanned:
    """A run, and what reading and asking it takes."""

    path: Path

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("shard-*.safetensors"))

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def turns(self, repetitions: int) -> dict[str, Any]:
        """Return speeds in GB/s, sorted; of the first query the fastest turn."""
        plain, direct, first = [], [], []
        for _ in range(repetitions):
            plain.append(self._read(0))
            direct.append(self._read(getattr(os, "O_DIRECT", 0)))
            memory = self._opened()
            first.append(self._asked(memory, 1))
            second = self._asked(memory, 1)
            del memory
        speeds = {"disk": plain, "direct": direct, "scan": [turn["seconds"] for turn in first]}
        gbs = {f"{name}_gbs": sorted(self.nbytes / one / 1e9 for one in took) for name, took in speeds.items()}
        return {
            "bytes": self.nbytes,
            **gbs,
            "speed_ratio": gbs["scan_gbs"][-1] / gbs["disk_gbs"][-1],
            "direct_ratio": gbs["scan_gbs"][-1] / gbs["direct_gbs"][-1],
            "anonymous_mb": max(turn["anonymous_mb"] for turn in first),
            "first": min(first, key=lambda turn: turn["seconds"]),
            "second": second,
        }

    def batch(self, queries: int) -> dict[str, float]:
        return self._asked(self._opened(), queries)

    def _opened(self) -> Memory:
        """Load the run again, with no page of its files cached."""
        self._drop()
        return dualform.load(self.path)

    def _asked(self, memory: Memory, queries: int) -> dict[str, float]:
        """Return what queries cost: seconds, bytes from the disk over those of the run, anonymous memory."""
        asked = torch.randn(queries, 800, generator=torch.Generator().manual_seed(queries))
        before = _fetched()
        with _anonymous() as grown:
            _, seconds = timed(memory.attend({"layer": asked})["layer"].collect, Top(500, by="label"))
        fetched = (_fetched() - before) / self.nbytes
        return {"seconds": seconds, "read_ratio": fetched, "anonymous_mb": max(grown) / 1e6}

    def _read(self, flags: int) -> float:
        """Return the seconds to read all files with large reads into one buffer, aligned as O_DIRECT demands."""
        self._drop()
        buffer = mmap(-1, _BUFFER)

        def read() -> None:
            for file in self.files:
                with os.fdopen(_open(file, flags), "rb", buffering=0) as opened:
                    while opened.readinto(buffer):
                        pass

        return timed(read)[1]

    def _drop(self) -> None:
        """Make the system forget the files' pages, where it can; those that are mapped would stay."""
        gc.collect()
        if hasattr(os, "posix_fadvise"):
            for file in self.files:
                with file.open("rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _open(file: Path, flags: int) -> int:
    """Open a file, through the page cache if the file system has no other mode."""
    try:
        return os.open(file, os.O_RDONLY | flags | getattr(os, "O_BINARY", 0))
    except OSError:
        return os.open(file, os.O_RDONLY)


def _fetched() -> int:
    """Return the bytes that this process has read from a disk; 0 if they are not counted."""
    lines = _IO.read_text().splitlines() if os.access(_IO, os.R_OK) else []
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


@contextmanager
def _anonymous() -> Iterator[list[int]]:
    """Measures by how many bytes anonymous memory has grown at most."""
    before, grown, done = status("RssAnon"), [0], Event()

    def look() -> None:
        while not done.wait(_INTERVAL):
            grown.append(status("RssAnon") - before)

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield grown
    finally:
        done.set()
        watcher.join()


def main() -> None:
    scanned, limit, what, count = Scanned(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if limit:
        limit_data(limit + scanned.nbytes)
    print(json.dumps({"turns": scanned.turns, "batch": scanned.batch}[what](count)))


if __name__ == "__main__":
    main()

"""The claim: a run larger than memory is scanned at the disk's read speed, within 1 GB of anonymous memory.

    python -m benchmarks.out_of_core [--quick]

A run of 6 GB (quick: 1 GB) of random float16 keys of width 800 is written. A fresh process that may have a quarter of
that (quick: two thirds), counting the pages of files, then takes turns: it reads the files as plainly as can be, and
it opens the run and asks for the top 500 of each label for one query, which reads every key and checks its checksum.
Before each turn the files' pages are dropped. `speed_ratio` is the scan's speed over that of plain reading, the best
of all turns each, for a busy machine only takes speed away. `direct_ratio` is stricter: over reading past the page
cache (O_DIRECT), which leaves the processor idle. `read_ratio` is how many bytes were fetched from the disk over those
there are: above 1, pages were lost before they were used. `anonymous_mb` is how far anonymous memory grew at most.

Then the same memory is asked a second query, and a process of its own a batch of 100; if the batch takes more
memory than there is, or more than five minutes, this is reported.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.command import run
from benchmarks.memory_limit import group
from dualform.recorder.estimate import chapter_bytes
from dualform.store import (
    Column,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    Rows,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)

LAYER = Layer("layer", "Linear", 800, 800, KeyLayout(800), (Use(Parameter("layer.weight", (800, 800), 0), (0, 800)),))
_MANIFEST = Manifest("out-of-core", "2022-02-11", "benchmark", Storage(values=False), (Optimizer("SGD", ()),), (LAYER,))
_BATCH = 4096
_LABELS = 10
_DIRECTIONS = 32
_TIMEOUT = 300  # seconds
_PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Settings:
    """Size of the run, limit of memory, number of repetitions, queries in a batch."""

    run_bytes: int
    limit_bytes: int
    repetitions: int
    batch: int = 100


FULL = Settings(6 << 30, 3 << 29, 3)
QUICK = Settings(1 << 30, 700 << 20, 2)


def write(path: Path, nbytes: int) -> None:
    """Write a run of a size, in chapters as the recorder makes them."""
    state = {"parameters/layer.weight": Column([np.zeros((800, 800), dtype=np.float32)])}
    writer = RunWriter.begin(path, _MANIFEST, state, chapter_bytes(state), overwrite=False)
    for step in _steps(max(1, nbytes // (2 * LAYER.d_in * _BATCH))):
        writer.append(step, {"label": "int"})
        if writer.full:
            writer.seal(state)
    writer.close(state, "complete")


def _steps(count: int) -> Iterator[StepRecord]:
    """Make random keys close to a few directions, as those of trained networks are."""
    random = np.random.default_rng(0)
    directions = random.standard_normal((_DIRECTIONS, LAYER.d_in), dtype=np.float32)
    noise = 0.3 * random.standard_normal((_BATCH, LAYER.d_in), dtype=np.float32)  # the same for all: quicker
    for _ in range(count):
        along = random.standard_normal((_BATCH, _DIRECTIONS), dtype=np.float32)
        keys = (along @ directions + noise).astype(np.float16)
        exponents, labels = np.zeros(_BATCH, dtype=np.int16), random.integers(0, _LABELS, size=_BATCH)
        rows = Rows(keys, exponents, None, None, np.ones(1), {"label": labels}, may_repeat=False)
        yield StepRecord({"layer.weight": [1.0]}, {"layer": 0.0}, {"layer": [rows]})


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure with a run among temporary files (TMPDIR), on the disk that is measured; no data are needed."""
    settings = QUICK if quick else FULL
    return {"out_of_core": measured(settings), "settings": asdict(settings)}


def measured(settings: Settings) -> dict[str, Any]:
    with TemporaryDirectory(prefix="dualform-benchmark-") as temporary:
        path = Path(temporary) / "run"
        write(path, settings.run_bytes)
        with group(settings.limit_bytes) as (prefix, limit):
            allowed = 0 if prefix else settings.limit_bytes
            command = [*prefix, sys.executable, "-m", "benchmarks.scanned", str(path), str(allowed)]
            scan = printed([*command, "turns", str(settings.repetitions)])
            if "failed" in scan:
                raise RuntimeError(f"the scan {scan['failed']}, limited by {limit}")
            return {"limit": limit, **scan, "batch": printed([*command, "batch", str(settings.batch)])}


def printed(command: list[str]) -> dict[str, Any]:
    """Return the JSON that a process prints, or how it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=_PROJECT, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {_TIMEOUT} s"}
    if done.returncode:
        return {"failed": f"ended with code {done.returncode} {done.stderr[-2000:]}".strip()}
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def report(results: dict[str, Any]) -> str:
    scan, settings = results["out_of_core"], results["settings"]
    batch = f"{settings['batch']} queries"
    return "\n".join(
        [
            f"{scan['bytes'] / 1e9:.1f} GB in a process of {settings['limit_bytes'] / 1e9:.2f} GB: {scan['limit']}",
            f"plain reading   {_speeds(scan['disk_gbs'])}",
            f"past the cache  {_speeds(scan['direct_gbs'])}",
            f"first query     {_speeds(scan['scan_gbs'])}; the best is {scan['speed_ratio']:.2f} of the best plain "
            f"reading, {scan['direct_ratio']:.2f} of that past the cache",
            *(
                f"{name:16}{_cost(scan[key])}"
                for name, key in (("", "first"), ("second query", "second"), (batch, "batch"))
            ),
        ]
    )


def _speeds(gbs: list[float]) -> str:
    return f"{', '.join(f'{speed:.2f}' for speed in gbs)} GB/s"


def _cost(turn: dict[str, Any]) -> str:
    if "failed" in turn:
        return str(turn["failed"])
    return "{seconds:.1f} s, all bytes fetched {read_ratio:.2f} times, {anonymous_mb:.0f} MB anonymous".format(**turn)


if __name__ == "__main__":
    run("out_of_core", __doc__, measure, report)

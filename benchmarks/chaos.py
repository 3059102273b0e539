"""The claim: whatever happens to a recording, what was promised is there, in its place, and no other run is harmed.

    python -m benchmarks.chaos --minutes 20
    python -m benchmarks.chaos --kind renamed --seed 17 --events 1       # one event again
    python -m benchmarks.chaos --kills 1000                              # as benchmarks.crash does

Each event draws one kind of chaos (chaos_kinds.py) and has a seed, with which it can be made again. Recordings, and
what is asked of them, are in processes forked from this one, which has imported torch and started no thread. A
violation is printed with its seed; the exit code is then 1.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic

import torch

from benchmarks.chaos_kinds import KINDS
from benchmarks.chaos_recording import Place, uninterrupted
from benchmarks.crash import crash, report
from benchmarks.lives import Failed, Training


@dataclass(frozen=True)
class Violation:
    """A promise that did not hold, and what makes the event again."""

    kind: str
    seed: int
    what: str

    @property
    def command(self) -> str:
        return f"python -m benchmarks.chaos --kind '{self.kind}' --seed {self.seed} --events 1"


@dataclass
class Result:
    """How many events of each kind were tried, how many held, and those that did not."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0

    def held(self, kind: str) -> int:
        return self.tried[kind] - sum(violation.kind == kind for violation in self.violations)

    def to_dict(self) -> dict[str, object]:
        held = {kind: self.held(kind) for kind in KINDS}
        return {"tried": self.tried, "held": held, "violations": [asdict(v) for v in self.violations]}

    def __str__(self) -> str:
        lines = [f"{'chaos':<22}{'tried':>7}{'held':>7}"]
        lines += [f"{kind:<22}{tried:>7}{self.held(kind):>7}" for kind, tried in self.tried.items() if tried]
        lines += [f"VIOLATION {v.kind}: {v.what}\n  again: {v.command}" for v in self.violations]
        return "\n".join([*lines, f"took {self.seconds:.0f} s"])


def chaos(events: Iterator[tuple[str, int]]) -> Result:
    """Make one event after the other, each in a directory of its own. Sets torch to one thread: it can be forked."""
    torch.set_num_threads(1)
    Training()  # imports what torch only imports on use: here, and not in each process
    result, began, here = Result(), monotonic(), Path.cwd()
    with TemporaryDirectory(prefix="dualform-chaos-") as name:
        base = Path(name)
        whole = uninterrupted(base / "whole")
        for kind, seed in events:
            directory = base / str(seed)
            directory.mkdir()
            result.tried[kind] += 1
            try:
                KINDS[kind](Place(directory, whole, Random(seed)))
            except Failed as failure:
                result.violations.append(Violation(kind, seed, str(failure)))
            shutil.rmtree(directory)
            os.chdir(here)
    result.seconds = monotonic() - began
    return result


def drawn(kinds: Sequence[str], seed: int, events: int | None, seconds: float) -> Iterator[tuple[str, int]]:
    """Yield kinds at random, each with the seed of its event: so many, or as long as there is time."""
    end = monotonic() + seconds
    for number in count(seed):
        if number - seed == events if events is not None else monotonic() > end:
            return
        yield Random(f"kind {number}").choice(kinds), number


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--events", type=int, help="so many events, however long they take")
    parser.add_argument("--each", type=int, help="so many events of each kind")
    parser.add_argument("--kind", choices=list(KINDS), help="events of this kind only")
    parser.add_argument("--kills", type=int, help="kill a recording so many times instead, as benchmarks.crash does")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    if options.kills:
        killed = crash(options.kills, options.seed)
        print(json.dumps(asdict(killed), indent=1) if options.json else report(killed))
        sys.exit(0 if killed.ok else 1)
    kinds = [options.kind] if options.kind else list(KINDS)
    events = drawn(kinds, options.seed, options.events, 60 * options.minutes)
    if options.each:
        several = [kind for kind in kinds for _ in range(options.each)]
        events = iter([(kind, options.seed + number) for number, kind in enumerate(several)])
    result = chaos(events)
    print(json.dumps(result.to_dict(), indent=1) if options.json else result)
    sys.exit(1 if result.violations else 0)


if __name__ == "__main__":
    main()

"""One peer in a process of its own: prepare, ask one question, a hundred at once, and single ones after them.

    python -m benchmarks.peers.asking MODULE SCOPE TASK RESULT

Memory is counted from where torch is imported and the data are loaded, so a peer's package and everything it keeps
are in it; the peak is that of the first round. What takes less than a few seconds is then repeated, for the quickest
and how far apart the quickest and the slowest were. Importing the peer is not counted as time. `cores` is the CPU time
of the first round over its seconds: where it is far below one, the process waited, for others or for the disk,
and its seconds say little about the peer.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks.peers.finder import Finder, Prepare, TopExamples
from benchmarks.peers.meters import forget_peak, peak, resident, size, timed
from benchmarks.peers.task import SPARE, Task

_TIMES = 3  # at most, each measurement


class Round(NamedTuple):
    """A preparation and a first answer: the finder, seconds of both, bytes on disk before the question."""

    finder: Finder
    preparation: float
    first: float
    kept: int


@dataclass(frozen=True)
class Interview:
    """A peer, and what it is asked."""

    prepare: Prepare
    task: Task
    scope: str
    scratch: Path
    before: float  # resident memory to count from

    def figures(self) -> dict[str, Any]:
        """Measure everything; memory and answers in the first round."""
        rounds, began, worked = self._rounds(), perf_counter(), process_time()
        first_round = next(rounds)
        top, hundred = timed(self._answer, first_round.finder, self._many)
        _, further = timed(self._answer, first_round.finder, slice(1, 2))
        cores = (process_time() - worked) / (perf_counter() - began)
        memory = peak() - self.before
        every = [first_round, *rounds]
        return {
            "preparation": _summary([turn.preparation for turn in every]),
            "first": _summary([turn.first for turn in every]),
            "hundred": _summary(self._again(hundred, lambda _: self._answer(first_round.finder, self._many))),
            "further": _summary(self._again(further, lambda at: self._answer(first_round.finder, slice(at, at + 1)))),
            "cores": cores,
            "memory_mb": memory,
            "kept_bytes": first_round.kept,
            "same_class": self._same_class(top),
            "note": first_round.finder.note,
        }

    def _rounds(self) -> Iterator[Round]:
        """Yield more rounds while they are quick, each in a directory of its own."""
        spent = 0.0
        for turn in range(_TIMES):
            directory = self.scratch / str(turn)
            directory.mkdir()
            finder, prepared = timed(self.prepare, self.task, directory, self.scope)
            kept = size(directory)
            _, first = timed(self._answer, finder, slice(0, 1))
            yield Round(finder, prepared + finder.extrapolated, first, kept)
            spent += prepared + first
            if spent > self.task.settings.patience:
                return

    def _again(self, seconds: float, work: Callable[[int], object]) -> list[float]:
        """Return these seconds and those of repetitions; each gets its number, from 2 on, to ask something new."""
        times = [seconds]
        while len(times) < _TIMES and sum(times) < self.task.settings.patience:
            times.append(timed(work, len(times) + 1)[1])
        return times

    @property
    def _many(self) -> slice:
        return slice(SPARE, SPARE + self.task.settings.questions)

    def _answer(self, finder: Finder, rows: slice) -> TopExamples:
        return finder.top(self.task.questions[rows], self.task.predicted[rows], self.task.settings.k)

    def _same_class(self, top: TopExamples) -> float:
        """Return the share of the top training examples that have the class the model predicts."""
        predicted = self.task.predicted[self._many]
        return float((self.task.labels[top.rows] == predicted[:, None]).float().mean())


def _summary(seconds: list[float]) -> dict[str, Any]:
    """`cold` is the first: nothing was imported late, compiled or read into a cache before."""
    spread = max(seconds) - min(seconds)
    return {"cold": seconds[0], "min": min(seconds), "spread": spread, "times": len(seconds)}


def main() -> None:
    module, scope, directory, result = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    warnings.simplefilter("ignore")  # the peers' own
    task = Task.read(directory)
    _ = task.predicted  # no part of an answer
    forget_peak()
    before = resident()
    try:
        prepare = import_module(module).prepare
    except ModuleNotFoundError as missing:
        result.write_text(json.dumps({"missing": missing.name}))
        return
    scratch = result.with_suffix("")
    scratch.mkdir()
    result.write_text(json.dumps(Interview(prepare, task, scope, scratch, before).figures()))


if __name__ == "__main__":
    main()

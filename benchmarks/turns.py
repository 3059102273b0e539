"""Train two equal networks in turns, one plain, one recorded, in one process: a busy machine is busy for both.

A recorded turn ends when nothing is left to be written in the background, so that nothing of it is paid by the plain
turn that follows. What the run's last steps take to be written is measured, too, when the recording ends, and shared
out to all steps.
"""

from collections.abc import Callable, Iterable
from statistics import mean, median, quantiles
from time import perf_counter
from typing import Any

import psutil

import dualform

Train = Callable[[int, int], list[float]]  # steps first to last; returns the seconds of each


def take_turns(recorder: dualform.Recorder, plain: Train, recorded: Train, turns: Iterable[range]) -> dict[str, Any]:
    """Measure plain and recorded turns; the first of each warms up and is not counted.

    Returns:
        `record_overhead`: the median, over all turns, of the time of a recorded turn over that of the plain one before
        it, and the share of what comes at the end. `rss_mb`: how far resident memory had grown at most by a quarter, by
        half and by the end of the run.
    """
    process = psutil.Process()
    before, steps = process.memory_info().rss, 0
    plain_steps, recorded_steps, ratios, rss = list[float](), list[float](), list[float](), list[float]()
    with recorder:
        for turn in turns:
            began = perf_counter()
            of_plain = plain(turn.start, turn.stop)
            halfway = perf_counter()
            of_recorded = recorded(turn.start, turn.stop)
            _wait_for_the_writer(recorder)
            if steps:
                ratios.append((perf_counter() - halfway) / (halfway - began))
                plain_steps += of_plain
                recorded_steps += of_recorded
            steps += len(turn)
            rss.append((process.memory_info().rss - before) / 1e6)
        trained = perf_counter()
    closing = (perf_counter() - trained) / steps / mean(plain_steps)
    return {
        "record_overhead": median(ratios) + closing,
        "record_overheads": sorted(ratios),
        "closing": closing,
        "plain_ms": _per_step(plain_steps),
        "recorded_ms": _per_step(recorded_steps),
        "rss_mb": [max(rss[: 1 + int(q * (len(rss) - 1))]) for q in (0.25, 0.5, 1.0)],
    }


def _wait_for_the_writer(recorder: dualform.Recorder) -> None:
    """Without `sync`, which would end a chapter early: a run of that many steps has its own, and no more."""
    assert recorder._session is not None
    recorder._session.writer.wait()


def _per_step(times: list[float]) -> dict[str, float]:
    """Return the fastest and the median step, and the distance between quartiles, in milliseconds."""
    low, middle, high = quantiles(times, n=4)
    return {"min": 1e3 * min(times), "median": 1e3 * middle, "spread": 1e3 * (high - low)}

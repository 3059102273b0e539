"""What every benchmark has in common: how it is called, and how a repeated measurement is summed up."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

Measure = Callable[[Path | None, bool], dict[str, Any]]
Report = Callable[[dict[str, Any]], str]


def run(name: str, doc: str | None, measure: Measure, report: Report) -> None:
    """`python -m benchmarks.NAME [--quick] [--data DIR] [--json]`"""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller runs: less to wait for, and less to conclude")
    parser.add_argument("--data", default=os.environ.get("DUALFORM_DATA"), help="a directory with mnist/ in it")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    results = measure(None if options.data is None else Path(options.data), options.quick)
    print(json.dumps(results, indent=1) if options.json else report(results))


def seconds(work: Callable[[int], object], times: int) -> list[float]:
    """Return the seconds of several calls, each of which gets its number."""
    seconds = []
    for number in range(times):
        began = perf_counter()
        work(number)
        seconds.append(perf_counter() - began)
    return seconds


def in_ms(times: Sequence[float]) -> dict[str, float]:
    """Return the fastest, the median, and how much longer the slowest took."""
    return {"min": 1e3 * min(times), "median": 1e3 * median(times), "spread": 1e3 * (max(times) - min(times))}

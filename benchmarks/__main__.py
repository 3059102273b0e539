"""All benchmarks, and how far each goal was reached.

    python -m benchmarks --data data            # half an hour
    python -m benchmarks --quick                # a few minutes, on smaller runs
    python -m benchmarks --json                 # one document with everything that was measured

Every script can be run by itself: `python -m benchmarks.queries`. What it claims and how it measures is in its
docstring. Pixels come from DIR/mnist (--data or DUALFORM_DATA), else they are random.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import growth, out_of_core, peers, queries, recording, totals, whole_models
from benchmarks.command import Measure, run
from benchmarks.goals import goals
from benchmarks.machine import machine

SCRIPTS: Mapping[str, Any] = {
    "queries": queries,
    "totals": totals,
    "recording": recording,
    "whole_models": whole_models,
    "out_of_core": out_of_core,
    "peers": peers,
    "growth": growth,
}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Run all scripts, one after the other; measurements with goals come first."""
    headline: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name, script in SCRIPTS.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        details[name] = _measured(script.measure, data, quick)
        headline |= {key: details[name][key] for key in _SHOWN if key in details[name]}
    return {**headline, "goals": goals(details), "quick": quick, "machine": machine(), "details": details}


def _measured(measure: Measure, data: Path | None, quick: bool) -> dict[str, Any]:
    """Run a script; if it fails, the results of the others are not lost."""
    try:
        return measure(data, quick)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


_SHOWN = (
    "query_vs_read", "query_vs_torch", "query_vs_faiss", "batch_vs_torch", "totals_vs_dense", "record_overhead",
    "bytes_ratio", "peers", "out_of_core",
)  # fmt: skip


def report(results: dict[str, Any]) -> str:
    """Return each script's own report, and then the goals."""
    parts = [f"== {name} ==\n{_report_of(name, measured)}" for name, measured in results["details"].items()]
    lines = [f"{goal['met']:<4} {goal['claim']}: {goal['found']} (goal {goal['goal']})" for goal in results["goals"]]
    return "\n\n".join([*parts, "== goals ==\n" + "\n".join(lines)])


def _report_of(name: str, measured: dict[str, Any]) -> str:
    text: str = measured.get("failed") or SCRIPTS[name].report(measured)
    return text


if __name__ == "__main__":
    run("", __doc__, measure, report)

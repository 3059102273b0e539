"""The figures of a comparison as a table to read."""

from typing import Any

_COLUMNS = ["", "training", "prepare", "first", "100 at once", "one more", "all", "memory", "disk", "same class"]
_WORKING = 0.5  # cores at least, of a process that is not kept waiting


def report(results: dict[str, Any]) -> str:
    """Return a line for each peer, then their settings, whose seconds not to trust, and what could not be measured."""
    there = {name: row for name, row in results["peers"].items() if "not_available" not in row}
    waited = {name: row for name, row in there.items() if _waited(row)}
    missing = {name: row for name, row in results["peers"].items() if "not_available" in row}
    return "\n".join([
        *_head(results),
        "",
        *_aligned([_COLUMNS, *(_row(name, row) for name, row in there.items())]),
        "",
        *(f"{name}: {row['note']}" for name, row in there.items()),
        *(f"{name}: WAITED, {row['cores']:.2f} cores busy; measure all again" for name, row in waited.items()),
        *(f"{name}: NOT MEASURED, {row['not_available']}" for name, row in missing.items()),
    ])  # fmt: skip


def _waited(row: dict[str, Any]) -> bool:
    """Return whether a peer waited for other processes or the disk; the same rule applies to all peers."""
    return bool(row["cores"] < _WORKING)


def _head(results: dict[str, Any]) -> list[str]:
    settings, training = results["settings"], results["training"]
    return [
        f"{settings['examples']:,} training images ({settings['data']}), {settings['steps']:,} steps, top "
        f"{settings['k']} of {settings['questions']} test images, {settings['threads']} threads, "
        f"torch {settings['torch']}",
        f"the plain training took {training['plain']['seconds']:.1f} s; recording it took "
        f"{training['memory_mb']:.0f} MB more memory",
        "training: ratio to the plain one. prepare, first: seconds in a fresh process (the quickest, if repeated). "
        "100 at once, one more: the quickest (and how much longer the slowest took).",
        "all: seconds the training took longer, the preparation, the first answer and the hundred. memory, disk: MB. "
        "same class: share of the examples found.",
    ]


def _row(name: str, row: dict[str, Any]) -> list[str]:
    return [
        name,
        f"{row['training_ratio']:.2f}",
        *(_figure(row[kind], "cold", "min") for kind in ("preparation", "first")),
        *(_figure(row[kind], "min", "spread") for kind in ("hundred", "further")),
        f"{row['all_seconds']:.2f}",
        f"{row['memory_mb']:,.0f}",
        f"{row['disk_bytes'] / 1e6:,.0f}",
        f"{row['same_class']:.0%}",
    ]


def _figure(times: dict[str, Any], main: str, aside: str) -> str:
    return f"{times[main]:.3f}" + (f" ({times[aside]:.3f})" if times["times"] > 1 else "")


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return lines with the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]

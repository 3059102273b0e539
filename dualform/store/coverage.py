"""Say which share of a model's training a run holds, parameter by parameter, with the reason for what is missing.

    print(recorder.coverage)        # 99.2% of 85,728 trainable parameters attributed, 0.8% accounted for
    memory.coverage.table           # a row for each parameter: numbers, how it is covered, why not better

A parameter is *attributed* if a recorded layer uses it: what it has learnt splits over training slots. It is *accounted
for* if its gradient was kept step by step: what it was at any step is known, but not due to whom. Of the others there
are snapshots only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from html import escape
from math import prod

import numpy as np

from dualform.store.schema import Manifest
from dualform.table import Table

ATTRIBUTED, ACCOUNTED, SNAPSHOTS_ONLY = "attributed", "accounted for", "snapshots only"


@dataclass(frozen=True)
class Coverage:
    """Shares of the trainable numbers, which add up to 1, and a table with a row for each parameter."""

    attributed: float
    accounted: float
    snapshots_only: float
    numbers: int  # in trainable parameters
    frozen: int  # in parameters that were not trainable when recording began
    table: Table

    def __str__(self) -> str:
        parts = [f"{_percent(self.attributed)} of {self.numbers:,} trainable parameters attributed"]
        parts += [f"{_percent(self.accounted)} accounted for"] if self.accounted else []
        parts += [f"{_percent(self.snapshots_only)} in snapshots only"] if self.snapshots_only else []
        return ", ".join(parts) + (f" ({self.frozen:,} more are frozen)" if self.frozen else "")

    def __repr__(self) -> str:
        return f"{self}\n{self.table}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>{self.table._repr_html_()}"

    def parameters(self, how: str) -> list[str]:
        """Return the names of the parameters that are covered in one of the three ways."""
        return [row["parameter"] for row in self.table.rows() if row["covered"] == how]

    def to_dict(self) -> dict[str, object]:
        """Return the coverage as data."""
        shares = {"attributed": self.attributed, "accounted": self.accounted, "snapshots_only": self.snapshots_only}
        return {**shares, "numbers": self.numbers, "frozen": self.frozen, "parameters": list(self.table.rows())}


def coverage(manifest: Manifest, accounted: Collection[str], dropped: Mapping[str, int] | None = None) -> Coverage:
    """Return the coverage of a run.

    Args:
        manifest: What is recorded, and what is not.
        accounted: The parameters no layer uses whose gradients are kept step by step.
        dropped: Layers that are not recorded any more, with the step from which on.
    """
    rows = []
    for parameter in (parameter for parameter in manifest.parameters if parameter.trained):
        since = [(dropped or {}).get(layer.name) for layer in manifest.users[parameter]]
        lost = next((step for step in since if step is not None), None)
        reason = "" if lost is None else f"dropped at step {lost}, where its gradient was not explained"
        rows.append((parameter, ATTRIBUTED if lost is None else SNAPSHOTS_ONLY, reason))
    for other in manifest.others:
        how = ACCOUNTED if other.parameter.name in accounted else SNAPSHOTS_ONLY
        rows.append((other.parameter, how, other.reason))
    sizes = np.array([prod(parameter.shape) for parameter, _, _ in rows], dtype=np.int64)
    ways = np.array([how for _, how, _ in rows])
    total = int(sizes.sum())
    attributed, accounted_for = (float(sizes[ways == how].sum()) / total for how in (ATTRIBUTED, ACCOUNTED))
    columns = {
        "parameter": np.array([parameter.name for parameter, _, _ in rows]),
        "numbers": sizes,
        "covered": ways,
        "reason": np.array([reason for _, _, reason in rows]),
    }
    only = float(sizes[ways == SNAPSHOTS_ONLY].sum()) / total
    return Coverage(attributed, accounted_for, only, total, manifest.frozen_numbers, Table(columns))


def _percent(share: float) -> str:
    """Write a share so that what is not all of it never looks like all, nor something like nothing."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}%"
    text = f"{100 * share:.3g}"
    return f"{'>99.9' if text == '100' else text if share >= 5e-4 else f'{100 * share:.1g}'}%"

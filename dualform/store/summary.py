"""Describe a run in a few lines, for `print(memory)` and `dualform info`, without reading its slots."""

from dataclasses import asdict
from typing import Any

import numpy as np

from dualform.errors import listing
from dualform.store.run import Run
from dualform.store.schema import AUDIT


def summary(run: Run) -> dict[str, Any]:
    """Return the facts as data."""
    return {
        "path": run.backend.describe(),
        "run": run.manifest.run,
        "created": run.manifest.created,
        "software": run.manifest.software,
        "processes": run.manifest.world,
        "steps": run.steps,
        "recipe": None if run.manifest.recipe is None else asdict(run.manifest.recipe),
        "ended": run.ended,
        "snapshots": list(run.sealed),  # a recording can go on from each of these steps
        "unread": run.unread,
        "bytes": run.nbytes,
        "storage": asdict(run.manifest.storage),
        "optimizers": [optimizer.kind for optimizer in run.manifest.optimizers],
        "tags": dict(run.tags),
        "layers": {
            layer.name: {
                "kind": layer.kind,
                "d_in": layer.d_in,
                "d_out": layer.d_out,
                "slots": run.slots(layer.name),
                "stored": layer.stored,
            }
            for layer in run.layers.values()
        },
        "dropped": dict(run.dropped),
        "coverage": run.coverage.to_dict(),
        "notes": run.notes,
        "worst_residual": worst_residual(run),
        "about": run.manifest.about,
    }


def worst_residual(run: Run) -> float:
    """Return the largest share of a gradient that the audit left unexplained, over all steps and layers."""
    audits = [shard[name] for _, shard in run.chapters for name in shard.names(AUDIT)]
    worst = [float(np.nanmax(audit)) for audit in audits if not np.isnan(audit).all()]
    return max([*worst, *(run.replay.residuals.values() if run.replay else ())], default=0.0)


def summary_lines(run: Run) -> dict[str, str]:
    """Return the facts as lines for people."""
    facts = summary(run)
    layers = (
        f"{name} ({layer['d_in']} to {layer['d_out']}, {layer['slots']:,} slots)"
        for name, layer in facts["layers"].items()
    )
    merge = facts["storage"]["merge"]
    unstored = [layer.name for layer in run.layers.values() if not layer.stored]
    audit = f"every gradient explained, to {facts['worst_residual']:.1e} at worst"
    if len(unstored) == len(run.layers):
        audit = "gradients are explained when a recipe makes slots again"
    kept = f"keys summed by {merge}" if merge else "keys and values" if facts["storage"]["values"] else "keys only"
    by = f", by {facts['processes']} processes" if facts["processes"] > 1 else ""
    resume = "" if run.ended else ". To go on, restore your checkpoint of one and dualform.record(..., resume=STEP)"
    lines = {
        "run": facts["path"],
        "recorded": f"{facts['created']}, {facts['software']}{by}",
        "steps": f"{facts['steps']:,} ({ending(run)})",
        "snapshots": f"after step {listing(reversed(facts['snapshots']), most=10)}{resume}",
        "layers": ", ".join(layers),
        "coverage": str(run.coverage),
        "optimiser": ", ".join(facts["optimizers"]),
        "tags": ", ".join(f"{name} ({kind})" for name, kind in facts["tags"].items()) or "none",
        "stored": f"{facts['bytes'] / 1e6:,.1f} MB, {kept} in {facts['storage']['dtype']}"
        + (f"; slots of {listing(unstored, most=3)} are made again by a recipe" if unstored else ""),
        "audit": audit,
    }
    if run.dropped:
        lines["dropped"] = ", ".join(f"{name} (from step {step:,} on)" for name, step in run.dropped.items())
    if run.notes:
        lines["notes"] = "; ".join(run.notes)
    if run.unread:
        lines["not read"] = run.unread
    return lines


def ending(run: Run) -> str:
    """Return how recording ended, in words."""
    if run.ended is None:
        return "not closed: cut off, or still being recorded"
    return "complete" if run.ended == "complete" else f"ended by {run.ended}"

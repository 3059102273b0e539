"""The goals, and what was measured of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Details = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A measurement of one script with a lower or an upper limit."""

    claim: str
    of: Callable[[Details], Any]
    least: float | None = None
    most: float | None = None

    def line(self, details: Details) -> dict[str, Any]:
        try:
            measured = self.of(details)
        except KeyError:
            measured = "not measured"
        goal = f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"
        if isinstance(measured, str):  # why it is not known
            return {"claim": self.claim, "goal": goal, "found": measured, "met": "?"}
        met = measured >= self.least if self.least is not None else measured <= (self.most or 0)
        return {"claim": self.claim, "goal": goal, "found": float(f"{measured:.3g}"), "met": "yes" if met else "no"}


GOALS = (
    Goal("one query, in readings of the stored keys", lambda d: d["queries"]["query_vs_read"], most=1.3),
    Goal("one query, times quicker than torch", lambda d: d["queries"]["query_vs_torch"], least=4),
    Goal("one query, times quicker than faiss", lambda d: d["queries"]["query_vs_faiss"], least=8),
    Goal("1,000 queries, times quicker than torch", lambda d: d["queries"]["batch_vs_torch"], least=2),
    Goal(
        "totals of layers 1 and 2, times quicker than dense",
        lambda d: d["totals"]["totals_vs_dense"]["layers 1 and 2"],
        least=100,
    ),
    Goal("totals of all layers, times quicker than dense", lambda d: d["totals"]["totals_vs_dense"]["all"], least=20),
    Goal("a recorded training, in plain ones", lambda d: d["recording"]["record_overhead"], most=1.12),
    Goal("bytes, of raw float32", lambda d: d["queries"]["bytes_ratio"], most=0.36),
    Goal("certificate", lambda d: d["queries"]["certificate"], most=5e-4),
    Goal("out of core, of the disk's speed", lambda d: d["out_of_core"]["out_of_core"]["speed_ratio"], least=0.8),
    Goal("out of core, anonymous MB", lambda d: d["out_of_core"]["out_of_core"]["anonymous_mb"], most=1000),
    Goal("a further answer, times quicker than the quickest peer", lambda d: _ahead(d["peers"]["peers"]), least=1),
)


def goals(details: Details) -> list[dict[str, Any]]:
    return [goal.line(details) for goal in GOALS]


def _ahead(peers: Details) -> float | str:
    """The last layer only, as the quickest of the peers; those that could not be measured are left out here."""
    there = {name: row["further"]["min"] for name, row in peers.items() if "not_available" not in row}
    others = [seconds for name, seconds in there.items() if not name.startswith("dualform")]
    own = there.get("dualform, last layer")
    return min(others) / own if others and own else "no peer could be measured"

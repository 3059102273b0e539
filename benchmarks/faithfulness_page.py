"""Puts measured figures into docs/faithfulness.md, as benchmarks/page.py does into the page of benchmarks.

python -m benchmarks.faithfulness --data data --json > docs/results/faithfulness.json
python -m benchmarks.suspects --data data --json > docs/results/suspects.json
python -m benchmarks.faithfulness_page
"""

import json
from functools import partial

from benchmarks.page import HOME, Blocks, Results, filled, table
from benchmarks.page import machine as machine_of

PAGE = HOME / "docs" / "faithfulness.md"
_RESULTS = HOME / "docs" / "results"
SUBJECTS = ("digits, SGD", "digits, SGD at 0.003", "digits, Adam", "MNIST, SGD", "MNIST, Adam")


def load() -> Results:
    """Return what was measured."""
    return {name: json.loads((_RESULTS / f"{name}.json").read_text()) for name in ("faithfulness", "suspects")}


def machine(results: Results) -> str:
    return machine_of(results["faithfulness"])


def faithful(subject: str, results: Results) -> str:
    """Return the scores of all methods for one training; the best of each column is bold."""
    methods = results["faithfulness"]["subjects"][subject]
    best = {drop: max(of["lds"][drop] for of in methods.values()) for drop in ("0.5", "0.1", "0.01")}
    rows = [[name, *(_score(of["lds"][drop], most) for drop, most in best.items())] for name, of in methods.items()]
    return table(["", "without 50 %", "10 %", "1 %"], rows)


def _score(value: float, best: float) -> str:
    return f"**{value:.2f}**" if value == best else f"{value:.2f}"


def costs(subject: str, results: Results) -> str:
    """Return what all methods took."""
    methods = results["faithfulness"]["subjects"][subject]
    rows = [
        [
            name,
            *(f"{of[stage]:.1f} s" for stage in ("prepare", "ask")),
            f"{of['trainings']:.1f}",
            _megabytes(of["kept"]),
        ]
        for name, of in methods.items()
    ]
    return table(["", "prepare", "64 outputs", "both, in trainings", "kept"], rows)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def suspects(results: Results) -> str:
    rows = [
        [
            name, f"{found['auc']:.4f}", f"{found['precision']:.0%}", f"{found['suggested']:.0%}",
            f"{found['seconds']:.2f} s", f"{found['final_loss']['auc']:.4f}", f"{found['final_loss']['precision']:.0%}",
        ]
        for name, found in results["suspects"].items()
    ]  # fmt: skip
    head = ["", "AUC", "precision", "true label suggested", "takes", "final loss: AUC", "precision"]
    return table(head, rows)


BLOCKS: Blocks = {
    "machine": machine,
    **{subject: partial(faithful, subject) for subject in SUBJECTS},
    "costs": partial(costs, "MNIST, SGD"),
    "suspects": suspects,
}


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), load(), BLOCKS))

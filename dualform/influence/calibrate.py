"""Measure how well influence predicts retraining, on a run itself: train again without random examples, and compare.

    calibration = memory.calibrate(model, images, drop=0.05, runs=16)
    calibration.table                   # of each method: rank correlation, slope, seconds
    calibration.figure()

The measure is that of the field, the linear datamodeling score: for each test output, the rank correlation over the
trainings between what a method predicts and what came out; the mean over outputs. The slope says how far the sizes are
right: true changes are so many times the predicted ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dualform.atomic_file import write_atomically
from dualform.attention.directions import measured
from dualform.errors import QueryError, StorageError, UnknownName, listing
from dualform.influence.ask import Wanted, asked_of_layers, check_view, outputs_of
from dualform.influence.fast import Asked
from dualform.recipe.retrain import recipe_of
from dualform.slots import View
from dualform.store import LocalFiles
from dualform.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("attention", "contribution", "muting", "fast", "exact")
Progress = Callable[[int, int], None]


class Asks(Protocol):
    """What is asked of a memory."""

    def attend(self, model: nn.Module, inputs: Any = None, *, rows: int | slice | None = None) -> Any: ...
    def without(self, /, **tags: Any) -> Any: ...
    def retrain(self, *, without: Any) -> nn.Module: ...
    @property
    def influence(self) -> Callable[..., Any]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """True changes of outputs, and what each method predicts of them: (runs, outputs) each."""

    true: Tensor
    predicted: Mapping[str, Tensor]
    seconds: Mapping[str, float]
    drop: float  # the share of examples that each training is without

    @property
    def table(self) -> Table:
        """A row for each method: lds (1 is perfect, 0 is chance), slope (1 is perfect), and what it took."""
        methods = list(self.predicted)
        return Table(
            {
                "method": np.array(methods),
                "lds": np.array([rank_correlation(self.predicted[name], self.true) for name in methods]),
                "slope": np.array([_slope(self.predicted[name], self.true) for name in methods]),
                "seconds": np.array([self.seconds[name] for name in methods]),
            }
        )

    def figure(self) -> "Figure":
        """Draw predicted against true changes."""
        from dualform import plots

        titles = {name: f"influence, {name}" if name in ("fast", "exact") else name for name in self.predicted}
        correlations = {titles[row["method"]]: row["lds"] for row in self.table.rows()}
        pairs = {titles[name]: (own.numpy(), self.true.numpy()) for name, own in self.predicted.items()}
        return plots.predicted_changes(pairs, correlations, self.drop)

    def __repr__(self) -> str:
        runs, outputs = self.true.shape
        return (
            f"Calibration by {runs} trainings without {self.drop:.1%} of the examples, {outputs} outputs\n{self.table}"
        )


@dataclass(frozen=True)
class Plan:
    """Which trainings are compared with which methods."""

    drop: float
    runs: int
    methods: Sequence[str]
    seed: int

    def check(self) -> None:
        """Raise unless it can be carried out."""
        if not self.methods:
            raise QueryError(f"methods are some of {listing(METHODS)}, not none")
        for name in self.methods:
            if name not in METHODS:
                raise UnknownName("method", name, METHODS)
        if not 0 < self.drop < 1:
            raise QueryError(f"drop is the share of examples to leave out, between 0 and 1, not {self.drop!r}")
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 3:
            raise QueryError(f"runs must be a whole number, at least 3, not {self.runs!r}")


def calibrate(
    memory: Asks, view: View, model: nn.Module, inputs: Any, wanted: Wanted, plan: Plan, progress: Progress
) -> Calibration:
    """Train again without random examples, and compare what came out with what each method predicts."""
    plan.check()
    check_view(view)
    if view.selection.until < view.run.steps:
        raise QueryError("a training is compared with others of as many steps: calibrate a memory, not its beginning")
    recipe_of(view.run)
    asked, towards = asked_of_layers(view, model, inputs, wanted)
    wanted = Wanted(towards.classes, wanted.of, wanted.rows)
    outputs = outputs_of(view, model, inputs, wanted)

    def measure(model: nn.Module) -> Tensor:
        return measured(outputs(model), towards.classes, wanted.of)

    now = towards.measures
    ids = _ids(view)
    generator = torch.Generator().manual_seed(plan.seed)
    count = max(1, round(plan.drop * len(ids)))
    left_out = [torch.randperm(len(ids), generator=generator)[:count] for _ in range(plan.runs)]
    true, seconds = _truth(memory, view, measure, ids, left_out, now, progress)
    chosen = torch.stack([torch.zeros(len(ids), dtype=torch.float64).index_fill_(0, rows, 1.0) for rows in left_out])
    predicted, took = dict[str, Tensor](), {"retraining": seconds}
    for name in plan.methods:
        began = perf_counter()
        if name == "muting":
            predicted[name] = torch.stack(
                [_outputs(memory.without(id=ids[rows].tolist()).model(model), measure) - now for rows in left_out]
            )
        else:
            by_name = _scores(memory, model, inputs, wanted, name, asked, ids)
            changes = {own: -chosen @ scores.T for own, scores in by_name.items()}
            agreement = {own: rank_correlation(change, true) for own, change in changes.items()}
            name = max(agreement, key=agreement.__getitem__)  # of several layers the one that does best
            predicted[name] = changes[name]
        took[name] = perf_counter() - began
    return Calibration(true, predicted, took, count / len(ids))


def _scores(
    memory: Asks, model: nn.Module, inputs: Any, wanted: Wanted, name: str, asked: Mapping[str, Asked], ids: np.ndarray
) -> dict[str, Tensor]:
    """Return what a method says of each example, (outputs, examples); attention has it by layer."""
    tests = len(torch.as_tensor(wanted.target))
    if name in ("fast", "exact"):
        options = {"rows": wanted.rows, "of": wanted.of, "method": name}
        table = memory.influence(model, inputs, wanted.target, **options).examples
        return {name: _scattered(table["query"], table["id"], table["total"], ids, tests)}
    spotlight = memory.attend(model, inputs)
    if name == "attention":
        return {
            f"attention ({layer})": _by_id(spotlight[layer], ids, own.owners, tests) for layer, own in asked.items()
        }
    parts = [
        _by_id(spotlight[layer].contribution(own.directions), ids, own.owners, tests) for layer, own in asked.items()
    ]
    return {name: torch.stack(parts).sum(dim=0)}


def _ids(view: View) -> np.ndarray:
    """Return the ids of all examples that the layer that comes last has seen."""
    layer = list(view.run.layers)[-1]
    ids = view.grouping(layer, "id").columns()["id"]
    if ids.dtype == object:
        raise QueryError("some slots belong to no example: calibrate needs a run whose last layer has ids for all")
    return ids


def _outputs(model: nn.Module, measure: Callable[[nn.Module], Tensor]) -> Tensor:
    with torch.no_grad():
        return measure(model.eval()).double()


def _by_id(layer: Any, ids: np.ndarray, owners: Tensor, tests: int) -> Tensor:
    table = layer.total(by="id")
    queries = owners.numpy()[table["query"]]
    return _scattered(queries, table["id"], table["total"], ids, tests)


def _scattered(query: np.ndarray, values: np.ndarray, total: np.ndarray, ids: np.ndarray, tests: int) -> Tensor:
    """Return scores by test and example: (tests, examples)."""
    known = np.isin(values, ids)
    scores = torch.zeros(tests * len(ids), dtype=torch.float64)
    cells = torch.from_numpy(query[known] * len(ids) + np.searchsorted(ids, values[known]))
    return scores.index_add_(0, cells, torch.from_numpy(total[known]).double()).view(tests, len(ids))


def _truth(
    memory: Asks,
    view: View,
    measure: Callable[[nn.Module], Tensor],
    ids: np.ndarray,
    left_out: Sequence[Tensor],
    now: Tensor,
    progress: Progress,
) -> tuple[Tensor, float]:
    """Return how outputs change in each training; what was trained before is kept beside the run, one by one."""
    kept = _file(view, [now.numpy(), *(rows.numpy() for rows in left_out)])
    changes, seconds = _read(kept, len(now))
    for number in range(len(changes), len(left_out)):
        progress(number, len(left_out))
        began = perf_counter()
        again = memory.retrain(without={"id": ids[left_out[number]].tolist()})
        changes.append((_outputs(again, measure) - now).tolist())
        seconds += perf_counter() - began
        text = json.dumps({"changes": changes, "seconds": seconds})
        with suppress(StorageError):  # a run may be somebody else's
            if kept is not None:
                write_atomically(kept, [np.frombuffer(text.encode(), dtype=np.uint8)])
        progress(number + 1, len(left_out))
    return torch.tensor(changes[: len(left_out)], dtype=torch.float64), seconds


def _read(kept: Path | None, outputs: int) -> tuple[list[list[float]], float]:
    """Return the changes that were kept, and how long they took; of what is none of ours, nothing."""
    try:
        content = json.loads(kept.read_text()) if kept is not None else {}
        changes = [[float(number) for number in row] for row in content["changes"]]
        if any(len(row) != outputs or not np.isfinite(row).all() for row in changes):
            return [], 0.0
        return changes, float(content["seconds"])
    except (OSError, ValueError, LookupError, TypeError):
        return [], 0.0


def _file(view: View, parts: Sequence[np.ndarray]) -> Path | None:
    """Return where the changes of outputs are kept: a file for each question; None where a run is in no directory."""
    if not isinstance(view.run.backend, LocalFiles):
        return None
    digest = blake2b(f"{view.run.manifest.run} {view.run.steps}".encode(), digest_size=8)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return view.run.path / f"calibration-{digest.hexdigest()}.json"


def rank_correlation(predicted: Tensor, true: Tensor) -> float:
    """Return the mean over outputs of the rank correlation over trainings; 0 where nothing differs."""
    a, b = (_ranks(values) for values in (predicted, true))
    a, b = a - a.mean(dim=0), b - b.mean(dim=0)
    size = (a.square().sum(dim=0) * b.square().sum(dim=0)).sqrt()
    return float(((a * b).sum(dim=0) / size.clamp(min=1e-300)).mean())


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each entry in its column; equal ones share the mean of theirs."""
    less = (values[None] < values[:, None]).sum(dim=1)
    equal = (values[None] == values[:, None]).sum(dim=1)
    return less.double() + (equal.double() - 1) / 2


def _slope(predicted: Tensor, true: Tensor) -> float:
    return float((predicted * true).sum() / predicted.square().sum().clamp(min=1e-300))

"""Results of the image experiments as one JSON document, with the paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from statistics import fmean, stdev
from typing import Any

import dualform
from dualform.experiments import table1
from dualform.experiments.cases import SelectedInput
from dualform.experiments.continual import Accuracies, MutedPredictions
from dualform.experiments.figures import SavedFigure
from dualform.experiments.plan import ImagePlan

# What the paper reports, in per cent; with MNIST first.
PAPER_ACCURACY: dict[str, Any] = {
    "single": 97.0,
    "joint": {"mnist": 97.0, "fashion-mnist": 87.0},
    "continual": {"final": {"mnist": 45.0, "fashion-mnist": 85.0}, "until_first_task": {"mnist": 97.0}},
}
VIEWS = {
    "final": "at the end",
    "until_first_task": "as it was after the first task",
    "without_second_task": "second task muted",
    "without_first_task": "first task muted",
}
CAPTIONS = {
    "accuracies": "Accuracy on both tasks: at the end, as it was after the first task, and with either task muted.",
    "matrix": "Who attends to whom: the attention of test inputs of each class (rows), shared out among the training "
    "classes (columns).",
}


@dataclass(frozen=True)
class NetworkResults:
    """Measurements of one network."""

    seed: int
    accuracies: list[dict[str, float]]  # after each phase, by task, measured while it was trained
    certificate: dualform.Certificate
    seconds: dict[str, float]
    table1: table1.Table1 | None
    views: Accuracies | None

    def certified(self) -> dict[str, Any]:
        """Return the certificate as data, without its parameters."""
        certificate = self.certificate
        return {
            "seed": self.seed,
            "ok": certificate.ok,
            "headline": certificate.headline,
            "relative_error": {name: layer.relative_error for name, layer in certificate.layers.items()},
            "steps_audited": certificate.steps_audited,
            "worst_residual": certificate.worst_residual,
        }


@dataclass(frozen=True)
class CaseFigures:
    """A test input and the figures about it."""

    case: SelectedInput
    figures: list[SavedFigure]

    def to_dict(self) -> dict[str, Any]:
        names = self.case.task.class_names
        return {
            "task": self.case.task.name,
            "index": self.case.index,
            "true": names[self.case.true],
            "predicted": names[self.case.predicted],
            "figures_of_the_paper": self.case.figures or None,
            "figures": [figure.file.as_posix() for figure in self.figures],
        }


@dataclass(frozen=True)
class Illustrations:
    """Figures of the first network, and its predictions with slots muted."""

    cases: list[CaseFigures]
    general: list[SavedFigure] = field(default_factory=list)
    muted: list[MutedPredictions] = field(default_factory=list)
    matrices: dict[str, list[list[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageResults:
    """Everything that is reported about an image experiment."""

    plan: ImagePlan
    networks: list[NetworkResults]
    illustrations: Illustrations

    @property
    def title(self) -> str:
        return f"{self.plan.experiment.title}, reproduced"

    @property
    def with_table1(self) -> bool:
        return self.networks[0].table1 is not None

    @property
    def with_views(self) -> bool:
        """Whether views of the run were compared, which show what was forgotten."""
        return self.networks[0].views is not None

    @property
    def compared(self) -> bool:
        """Whether the paper has numbers for this data set."""
        return self.plan.options.dataset == "mnist"


def document(results: ImageResults) -> dict[str, Any]:
    """Return the results as data: `accuracy`, `table1`, and so on; numbers over networks have `mean` and `std`."""
    networks, plan = results.networks, results.plan
    accuracies: list[Any] = [network.views or network.accuracies[-1] for network in networks]
    if len(plan.tasks) == 1:
        accuracies = [by_task[plan.tasks[0].name] for by_task in accuracies]
    content: dict[str, Any] = {
        "experiment": plan.experiment.name,
        "dataset": plan.options.dataset,
        "tasks": [task.name for task in plan.tasks],
        "steps": [phase.steps for phase in plan.phases],
        "seeds": len(networks),
        "keep": plan.options.keep,
        "accuracy": spread(accuracies),
    }
    if results.with_table1:
        tables = [network.table1 for network in networks if network.table1 is not None]
        content["table1"] = spread([table.attention for table in tables])
        content["table1_valued"] = spread([table.valued for table in tables])
        content["baselines"] = {
            "nearest_mean": spread([table.nearest_mean for table in tables]),
            "frequency": spread([table.frequency for table in tables]),
        }
    if results.with_views:
        content["after_first_task"] = spread([network.accuracies[0] for network in networks])
        content["stories"] = [muted.to_dict() for muted in results.illustrations.muted]
        content["attention_matrix"] = results.illustrations.matrices
    if results.compared:
        content["paper"] = {"accuracy": PAPER_ACCURACY[plan.experiment.name]}
        if results.with_table1:
            content["paper"]["table1"] = spread_of_paper()
    content["certificates"] = [network.certified() for network in networks]
    content["seconds"] = [{"seed": network.seed, **network.seconds} for network in networks]
    content["cases"] = [drawn.to_dict() for drawn in results.illustrations.cases]
    content["figures"] = [figure.file.as_posix() for figure in results.illustrations.general]
    return content


def spread(values: Sequence[Any]) -> Any:
    """Return mean, standard deviation and values over networks, of numbers or of nested dicts of numbers."""
    if isinstance(values[0], Mapping):
        return {name: spread([value[name] for value in values]) for name in values[0]}
    known = [float(value) for value in values if not isnan(value)]  # nan: there was no such input
    return {
        "mean": fmean(known) if known else None,
        "std": stdev(known) if len(known) > 1 else None,
        "values": [None if isnan(value) else float(value) for value in values],
    }


def spread_of_paper() -> dict[str, Any]:
    """Return mean and standard deviation of the paper's Table 1."""
    return {
        layer: {case: {"mean": mean, "std": std} for case, (mean, std) in cases.items()}
        for layer, cases in table1.PAPER_AGREEMENT.items()
    }

"""Results of the convolutional networks, as data and as sections of a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dualform
from dualform.experiments import table1
from dualform.experiments.cases import SelectedInput
from dualform.experiments.cifar.network import describe
from dualform.experiments.cifar.plan import NAME, CnnPlan
from dualform.experiments.continual import Accuracies
from dualform.experiments.figures import SavedFigure
from dualform.experiments.loops import SNAPSHOTS
from dualform.experiments.page import Section
from dualform.experiments.results import VIEWS, spread
from dualform.experiments.sections import CASE_NAMES, MADE_AGAIN, number

Agreements = dict[str, table1.Agreement]
PAPER = "below 50 %"  # what the paper's footnote 6 says of feedforward networks


@dataclass(frozen=True)
class CnnNetworkResults:
    """Measurements of the networks of one seed."""

    seed: int
    accuracy: float
    whole: Agreements  # of the output layer, with the slots of all steps
    last_epoch: Agreements  # of every recorded layer, with the slots of the last epoch
    nearest_mean: Agreements
    views: Accuracies  # of the network that learns the halves one after the other
    after_first: dict[str, float]  # its accuracies, measured in training
    coverage: str  # of its run
    not_recorded: Mapping[str, str]  # layers that attend but cannot be recorded, and why
    certificates: Mapping[str, dualform.Certificate]
    run_bytes: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class CnnCase:
    """A test input, its figures, and the ids of the training images that its layers attend to most."""

    case: SelectedInput
    figures: list[SavedFigure]
    top: Mapping[str, Sequence[int]]

    def to_dict(self) -> dict[str, Any]:
        names = self.case.task.class_names
        return {
            "index": self.case.index,
            "true": names[self.case.true],
            "predicted": names[self.case.predicted],
            "top_images": {layer: list(ids) for layer, ids in self.top.items()},
            "figures": [figure.file.as_posix() for figure in self.figures],
        }


@dataclass(frozen=True)
class CnnIllustrations:
    """Figures of the first seed's networks."""

    cases: list[CnnCase] = field(default_factory=list)
    general: list[SavedFigure] = field(default_factory=list)


@dataclass(frozen=True)
class CnnResults:
    """Everything that is reported."""

    plan: CnnPlan
    networks: list[CnnNetworkResults]
    illustrations: CnnIllustrations

    @property
    def title(self) -> str:
        return f"Convolutional networks on {self.plan.images.name}"


def document(results: CnnResults) -> dict[str, Any]:
    """Return the results as data; numbers over networks have `mean` and `std`."""
    networks, plan, illustrations = results.networks, results.plan, results.illustrations
    return {
        "experiment": NAME,
        "dataset": plan.images.name,
        "note": plan.images.note,
        "network": describe(plan.hparams.network()),
        "images": {"train": len(plan.task.train), "test": len(plan.task.test)},
        "steps": [plan.steps, plan.steps_in_turn],
        "seeds": len(networks),
        "keep": plan.options.keep,
        "accuracy": spread([network.accuracy for network in networks]),
        "table1": {
            "whole_training": spread([network.whole for network in networks]),
            "last_epoch": spread([network.last_epoch for network in networks]),
        },
        "baselines": {"nearest_mean": spread([network.nearest_mean for network in networks])},
        "continual": {
            "accuracy": spread([network.views for network in networks]),
            "after_first_task": spread([network.after_first for network in networks]),
            "coverage": networks[0].coverage,
        },
        "not_recorded": dict(networks[0].not_recorded),
        "certificates": [
            {
                "seed": network.seed,
                "run": run,
                "ok": certificate.ok,
                "headline": certificate.headline,
                "relative_error": {name: layer.relative_error for name, layer in certificate.layers.items()},
            }
            for network in networks
            for run, certificate in network.certificates.items()
        ],
        "run_bytes": [{"seed": network.seed, **network.run_bytes} for network in networks],
        "seconds": [{"seed": network.seed, **network.seconds} for network in networks],
        "cases": [case.to_dict() for case in illustrations.cases],
        "figures": [figure.file.as_posix() for figure in illustrations.general],
    }


def sections(results: CnnResults, content: Mapping[str, Any]) -> list[Section]:
    """Return the results as sections of a page.

    Args:
        results: of the experiment.
        content: the results as data, made by `document`.
    """
    shown = [
        Section(f"{drawn.case.title} (test input {drawn.case.index})", figures=drawn.figures)
        for drawn in results.illustrations.cases
    ]
    return [
        Section("What was done", _what_was_done(results, content)),
        _accuracy_section(results, content),
        _table1_section(content),
        *shown,
        _continual_section(results, content),
        _certificate_section(results),
    ]


def _what_was_done(results: CnnResults, content: Mapping[str, Any]) -> str:
    plan, hparams = results.plan, results.plan.hparams
    note = f" ({plan.images.note})" if plan.images.note else ""
    moved = f"moved by up to {hparams.shift} pixels" if hparams.shift else ""
    moved += " and, half of them, mirrored" if hparams.mirror else ""
    count = len(results.networks)
    text = (
        f"{count} network{'s' if count > 1 else ''} ({content['network']}) trained for {plan.steps:,} steps on "
        f"{len(plan.task.train):,} images{note}: batches of {hparams.batch}, SGD with Nesterov momentum "
        f"{hparams.momentum:g}, weight decay {hparams.decay:g}, labels smoothed by {hparams.smoothing:g}, a learning "
        f"rate that rises to {hparams.lr:g} in a quarter of the steps and falls like a cosine."
        f"{f' Images are {moved}, but not in the last epoch.' if moved else ''} Figures are of the first network."
        "\n\nA convolution has a slot for each of its positions, so that all layers of all steps take tens of "
        "gigabytes with CIFAR-10. Recorded are: the output layer in all steps, with its values, which is certified; "
        "the keys of all layers in the last epoch, in which images are seen as they are; and everything, in "
        "the shorter training on one half of the classes after the other. Attention is summed over all positions of "
        "the test image and of a training image. It is summed with its sign, which matters in the first layer only: "
        "later inputs are never negative."
        f"{MADE_AGAIN if plan.options.keep == SNAPSHOTS else ''}"
    )
    if content["not_recorded"]:
        missing = "; ".join(f"{name}: {why}" for name, why in content["not_recorded"].items())
        text += f"\n\nNot recorded, and so not asked: {missing}."
    return text


def _accuracy_section(results: CnnResults, content: Mapping[str, Any]) -> Section:
    here = content["accuracy"]
    rows = [[f"seed {network.seed}", f"{network.accuracy:.1f}"] for network in results.networks]
    rows.append(["mean", number(here["mean"], here["std"])])
    text = f"On {len(results.plan.task.test):,} test images, in per cent."
    if results.plan.images.name == "cifar-10":
        text += f" The paper's footnote 6 gives feedforward networks {PAPER}, and leaves CIFAR-10 out for that."
    return Section("Accuracy", text, ("", "here"), rows)


def _table1_section(content: Mapping[str, Any]) -> Section:
    table, means = content["table1"], content["baselines"]["nearest_mean"]
    periods = {"whole_training": "all steps", "last_epoch": "last epoch"}
    rows = []
    for period, words in periods.items():
        for layer, by_case in table[period].items():
            for case, here in by_case.items():
                nearest = means[layer][case]
                cells = [number(value["mean"], value["std"]) for value in (here, nearest)]
                rows.append([f"{layer}, {words}, {CASE_NAMES[case]}", *cells])
    text = (
        "The class with the highest total attention, taken as a classifier: how often it is the target and how often "
        "the network's output, on the inputs that the network gets wrong, and on those it gets right. Beside it a "
        "baseline that needs no training history: the class whose mean is nearest to the layer's input. Per cent. "
        "Summed over positions, the attention of a convolution tells how much there is of what in an image, not where."
    )
    return Section("Table 1: attention as a classifier", text, ("", "attention", "nearest class mean"), rows)


def _continual_section(results: CnnResults, content: Mapping[str, Any]) -> Section:
    here, rows = content["continual"], []
    for view, description in VIEWS.items():
        for task, value in here["accuracy"][view].items():
            rows.append([f"{task}, {description}", number(value["mean"], value["std"])])
    text = (
        f"Other networks of the same kind learn half of the classes in {results.plan.steps_in_turn:,} steps, then the "
        "other half in as many, with one output for all. Accuracy on the test images of each half, in per cent. "
        "Muting leaves out the recorded contributions of slots, in all layers that are recorded; it does not retrain. "
        f"Recorded: {here['coverage']}."
    )
    return Section(
        "One half of the classes after the other: what is forgotten, and what brings it back",
        text, ("", "here"), rows, figures=results.illustrations.general,
    )  # fmt: skip


def _certificate_section(results: CnnResults) -> Section:
    rows = []
    for network in results.networks:
        for run, certificate in network.certificates.items():
            worst = max(layer.relative_error for layer in certificate.layers.values())
            size = f"{network.run_bytes[run] / 1e6:,.0f}"
            exact = "exact" if certificate.ok else "NOT EXACT"
            rows.append([f"seed {network.seed}, {run}", exact, f"{worst:.1e}", size, f"{network.seconds[run]:.0f}"])
        megabytes, seconds = network.run_bytes["last epoch"] / 1e6, network.seconds["asking"]
        rows.append([f"seed {network.seed}, last epoch", "keys only", "–", f"{megabytes:,.0f}", f"{seconds:.0f}"])
    text = (
        "The weights rebuilt from the recorded slots against the weights that training arrived at: the largest "
        "relative error of their change in any layer. Seconds are those of training while it is recorded; of the last "
        "epoch, those of all questions about the test set."
    )
    columns = ("", "certificate", "largest error", "MB", "seconds")
    return Section("Exactness, size and time", text, columns, rows)

"""Results of the image experiments as sections of a page, with the paper's numbers beside ours."""

from collections.abc import Mapping
from typing import Any

from dualform.experiments import table1
from dualform.experiments.continual import most_likely
from dualform.experiments.loops import SNAPSHOTS
from dualform.experiments.page import Section
from dualform.experiments.results import VIEWS, ImageResults

CASE_NAMES = {"wrong_target": "wrong: equals target", "wrong_output": "wrong: equals output", "right": "right"}
MADE_AGAIN = " Stored were snapshots only; slots were made again for each question."
_SETTINGS = {
    False: "These are the settings of the paper's released code, which give its numbers; its text says plain SGD.",
    True: "The network is smaller than the paper's, as its images are.",
}


def sections(results: ImageResults, content: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a page.

    Args:
        results: of an experiment.
        content: the results as data, made by `document`.
    """
    parts = [Section("What was done", _what_was_done(results)), _accuracy_section(results, content)]
    if results.with_table1:
        parts += [_table1_section(content), _variants_section(content)]
    if results.with_views:
        parts.append(_forgetting_section(results))
    parts.append(_certificate_section(content))
    for drawn in results.illustrations.cases:
        parts.append(Section(f"{drawn.case.title} (test input {drawn.case.index})", figures=drawn.figures))
    return parts


def _what_was_done(results: ImageResults) -> str:
    plan, hparams = results.plan, results.plan.hparams
    phases = ", then ".join(
        f"{phase.steps:,} steps on {' and '.join(task.name for task in phase.tasks)}" for phase in plan.phases
    )
    count = len(results.networks)
    network = " - ".join(str(width) for width in plan.widths)
    return (
        f"{count} network{'s' if count > 1 else ''} ({network}, ReLU between) trained for {phases}: batches of "
        f"{hparams.batch}, SGD with learning rate {hparams.lr:g} and momentum {hparams.momentum:g}, gradients clipped "
        f"at norm {hparams.clip:g}. {_SETTINGS[hparams.small]} The first 80 % of each training set are trained on, "
        "pixels are standardised. Attention weights are taken by their absolute value, which matters in layer-0 only. "
        "Figures are of the first network."
        f"{MADE_AGAIN if plan.options.keep == SNAPSHOTS else ''}"
    )


def _accuracy_section(results: ImageResults, content: Mapping[str, Any]) -> Section:
    here, tasks, paper = content["accuracy"], content["tasks"], content.get("paper", {}).get("accuracy", {})
    rows = []
    if results.with_views:
        for view, description in VIEWS.items():
            for task in tasks:
                name = f"{task}, {description}"
                rows.append([name, *_compared(here[view][task], paper.get(view, {}).get(task))])
        measured = content["after_first_task"][tasks[0]]
        rows.append([f"{tasks[0]}, measured in training after the first task", *_compared(measured, None)])
    elif len(tasks) == 1:
        rows.append([tasks[0], *_compared(here, paper or None)])
    else:
        rows += [[task, *_compared(here[task], paper.get(task))] for task in tasks]
    return Section("Accuracy", "On the test set, in per cent.", ("", "paper", "here", "difference"), rows)


def _compared(here: Mapping[str, Any], paper: float | None, paper_std: float | None = None) -> list[str]:
    """Return cells with the paper's number, ours, and the difference."""
    difference = "" if paper is None or here["mean"] is None else f"{here['mean'] - paper:+.1f}"
    return [number(paper, paper_std), number(here["mean"], here["std"]), difference]


def number(mean: float | None, std: float | None) -> str:
    """Format a mean and its standard deviation, if there is one."""
    if mean is None:
        return "–"
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def _table1_section(content: Mapping[str, Any]) -> Section:
    paper = content.get("paper", {}).get("table1", {})
    rows = []
    for layer, cases in content["table1"].items():
        for case, here in cases.items():
            of_paper = paper.get(layer, {}).get(case, {"mean": None, "std": None})
            rows.append([f"{layer}, {CASE_NAMES[case]}", *_compared(here, of_paper["mean"], of_paper["std"])])
    text = (
        "The class with the highest total attention, taken as a classifier: how often it is the target and how "
        "often the network's output, on the inputs that the network gets wrong, and on those it gets right. Per cent."
    )
    return Section("Table 1: attention as a classifier", text, ("", "paper", "here", "difference"), rows)


def _variants_section(content: Mapping[str, Any]) -> Section:
    frequency, rows = content["baselines"]["frequency"], []
    for layer in content["table1"]:
        for case in table1.CASES:
            ways = (content["table1"], content["table1_valued"], content["baselines"]["nearest_mean"])
            cells = [number(way[layer][case]["mean"], way[layer][case]["std"]) for way in ways]
            constant = number(frequency[case]["mean"], frequency[case]["std"])
            rows.append([f"{layer}, {CASE_NAMES[case]}", *cells, constant])
    text = (
        "The same with each attention weight multiplied by the size of its value, |c| ‖e‖, and two baselines that "
        "need no training history: the class whose mean is nearest to the layer's input, and always the most frequent "
        "class."
    )
    columns = ("", "attention", "attention × value", "nearest class mean", "most frequent class")
    return Section("What Table 1 is worth", text, columns, rows)


def _forgetting_section(results: ImageResults) -> Section:
    text = (
        "Muting leaves out the recorded contributions of slots; it does not retrain. Going back to the end of the "
        "first task and muting the second one differ a little: with momentum, what the first task had gathered is "
        "still paid out in the steps after it, so its last slots count for more in the full run than at that moment."
    )
    paragraphs = [text]
    for muted in results.illustrations.muted:
        case, true, task = muted.case, muted.case.task.class_names[muted.case.true], muted.muted_task
        before, after, without_task = (
            _prediction(probabilities, true) for probabilities in (muted.before, muted.after, muted.without_task)
        )
        text = (
            f"Test input {case.index} of {case.task.name} is a {true}. The network says {before}. With nothing muted "
            f"but the class {muted.muted_class!r} of {task}, which shares that output, it says {after}. With all of "
            f"{task} muted, it says {without_task}."
        )
        if most_likely(muted.after) != true and most_likely(muted.without_task) == true:
            text += (
                " So it is not that class's doing alone: classes trained side by side balance each other at every "
                "output, and one of them taken out leaves the others unbalanced."
            )
        paragraphs.append(text)
    figures = results.illustrations.general
    return Section("What was forgotten, and what brings it back", "\n\n".join(paragraphs), figures=figures)


def _prediction(probabilities: Mapping[str, float], true: str) -> str:
    predicted = most_likely(probabilities)
    own = "" if predicted == true else f", and {true} with {probabilities[true]:.2f}"
    return f"{predicted} with probability {probabilities[predicted]:.2f}{own}"


def _certificate_section(content: Mapping[str, Any]) -> Section:
    rows = []
    for certificate, seconds in zip(content["certificates"], content["seconds"], strict=True):
        errors = [f"{error:.1e}" for error in certificate["relative_error"].values()]
        # A dash for the experiments in which nothing is asked about whole test sets.
        spent = [seconds[name] for name in ("training", "verifying", "asking")]
        times = [f"{value:.0f}" if value >= 0.5 else "–" for value in spent]
        rows.append([str(certificate["seed"]), "exact" if certificate["ok"] else "NOT EXACT", *errors, *times])
    layers = content["certificates"][0]["relative_error"]
    text = (
        "The weights rebuilt from the recorded slots against the weights that training arrived at: relative error of "
        "their change, by layer; and seconds spent."
    )
    columns = ("seed", "certificate", *layers, "training, recorded (s)", "verifying (s)", "test set (s)")
    return Section("Exactness and time", text, columns, rows)

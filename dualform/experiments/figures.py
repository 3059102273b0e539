"""Draw the paper's figures for one network.

For each selected test input there are four figures: the highest attention weights of every class, the total by
class, the top training images (as single visits and summed over visits), and when in training the top slots were
seen. Each is saved as PNG and as PDF.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform import plots
from dualform.experiments.cases import SelectedInput
from dualform.experiments.result_files import FIGURES
from dualform.experiments.tasks import Task, training_images

_GROUPS = ("task", "label")
_QUESTIONS: dict[str, dualform.Top | dualform.Total] = {
    "by_class": dualform.Top(500, by=_GROUPS, absolute=True),
    "totals": dualform.Total(by=_GROUPS, absolute=True),
    "visits": dualform.Top(3, absolute=True),
    "images": dualform.Top(3, per="id", absolute=True),
    "highest": dualform.Top(500, absolute=True),
}
_CAPTIONS = {
    "attention": "The 500 highest attention weights (absolute values) of each class, in descending order",
    "totals": "Attention weights (absolute values) summed over all slots of each class",
    "images": "The training images with the highest attention: single visits, and summed over all visits",
    "time": "Where in training time the 500 slots with the highest attention lie",
}


@dataclass(frozen=True)
class SavedFigure:
    """A figure on the disk, with its caption."""

    file: Path  # the PNG, relative to the directory of results; the PDF is beside it
    caption: str


@dataclass(frozen=True)
class AttentionTables:
    """Answers about the attention of one input."""

    case: SelectedInput
    tables: dict[str, dict[str, dualform.Table]]  # question -> layer -> table


def ask(memory: dualform.Memory, model: nn.Module, cases: Sequence[SelectedInput]) -> list[AttentionTables]:
    """Ask all questions about all cases, reading each layer once."""
    answers = memory.attend(model, torch.stack([case.image for case in cases])).collect(*_QUESTIONS.values())
    return [
        AttentionTables(
            case,
            {
                question: {layer: tables[number].where(query=row) for layer, tables in answers.items()}
                for number, question in enumerate(_QUESTIONS)
            },
        )
        for row, case in enumerate(cases)
    ]


def draw(answers: AttentionTables, tasks: Sequence[Task], ends: Sequence[int], out: Path) -> list[SavedFigure]:
    """Draw the figures of one case.

    Args:
        answers: about the case.
        tasks: of the experiment.
        ends: steps at which phases of training end.
        out: directory of results; the figures go into `out/figures`.
    """
    case, tables = answers.case, answers.tables
    names = plots.Tasks({task.name: task.class_names for task in tasks})
    image, raw = pictures(case.task.test.raw[case.index], case.task.image_shape), training_images(tasks)
    shown = plots.Case(image=image, task=case.task.name, true=case.true, predicted=case.predicted, index=case.index)
    rows = [
        plots.TopImages(
            layer=layer,
            visits=visits,
            visit_images=pictures(raw[visits["id"]], tasks[0].image_shape),
            images=tables["images"][layer],
            image_images=pictures(raw[tables["images"][layer]["id"]], tasks[0].image_shape),
        )
        for layer, visits in tables["visits"].items()
    ]
    figures = {
        "attention": plots.attention_per_class(shown, tables["by_class"], names),
        "totals": plots.total_per_class(shown, tables["totals"], names),
        "images": plots.top_images(shown, rows, names),
        "time": plots.top_in_time(shown, tables["highest"], ends[-1], ends[:-1], names),
    }
    of_the_paper = f" (Figures {case.figures} of the paper)" if case.figures else ""
    about = f"Test input {case.index}, {case.title}{of_the_paper}."
    return [save(figure, out, f"{case.name}-{name}", f"{_CAPTIONS[name]}. {about}") for name, figure in figures.items()]


def save(figure: Any, out: Path, name: str, caption: str) -> SavedFigure:
    """Save a figure as PNG and as PDF."""
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "pdf"):
        figure.savefig(out / FIGURES / f"{name}.{suffix}")
    return SavedFigure(Path(FIGURES) / f"{name}.png", caption)


def pictures(raw: Tensor, image_shape: Sequence[int]) -> NDArray[Any]:
    """Return pixels as images: (..., height, width), or (..., height, width, 3) in colour."""
    images: NDArray[Any] = raw.reshape(*raw.shape[:-1], *image_shape).numpy()
    return images if len(image_shape) == 2 else np.moveaxis(images, -3, -1)

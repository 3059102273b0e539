"""Draw what convolutional networks attend to, for single test images.

For each there are two figures: total attention by class, and the training images with the most attention, with the
places of both images that it comes from. Each is saved as PNG and as PDF.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

import dualform
from dualform import plots
from dualform.experiments.cases import SelectedInput
from dualform.experiments.cifar.answers import PositionMaps, image_queries, position_maps
from dualform.experiments.cifar.results import CnnCase
from dualform.experiments.figures import pictures, save
from dualform.experiments.tasks import Task

_TOP = 3  # training images for each layer
_CAPTIONS = {
    "totals": "Attention weights of the last epoch, summed over all slots of each class",
    "places": "The training images with the highest attention in the last epoch, summed over positions; and where in "
    "the test image (left of each pair) and in the training image (right) it comes from",
}


def draw(
    memory: dualform.Memory, model: nn.Module, task: Task, cases: Sequence[SelectedInput], out: Path
) -> list[CnnCase]:
    """Ask about some test images, and draw the answers.

    Args:
        memory: of the last epoch.
        model: as it was trained.
        task: all classes.
        cases: the test images.
        out: directory of results; the figures go into `out/figures`.
    """
    queries = image_queries(memory, model, torch.stack([case.image for case in cases]))
    answers = memory.attend(queries).collect(
        dualform.Total(by=("task", "label")), dualform.Top(_TOP, per="id")
    )  # fmt: skip
    names, drawn = plots.Tasks({task.name: task.class_names}), []
    for row, case in enumerate(cases):
        totals, tops = ({layer: tables[n].where(query=row) for layer, tables in answers.items()} for n in (0, 1))
        image = pictures(task.test.raw[case.index], task.image_shape)
        shown = plots.Case(image, task=task.name, true=case.true, predicted=case.predicted, index=case.index)
        figures = {
            "totals": plots.total_per_class(shown, totals, names),
            "places": plots.attended_places(shown, _rows(memory, model, task, case, tops), names),
        }
        about = f"Test input {case.index}, {case.title}."
        saved = [save(figure, out, f"{case.name}-{n}", f"{_CAPTIONS[n]}. {about}") for n, figure in figures.items()]
        drawn.append(CnnCase(case, saved, {layer: top["id"].tolist() for layer, top in tops.items()}))
    return drawn


def _rows(
    memory: dualform.Memory,
    model: nn.Module,
    task: Task,
    case: SelectedInput,
    tops: Mapping[str, dualform.Table],
) -> list[plots.PairRow]:
    """Return, for each layer, its top images with the places that they are attended to for."""
    rows = []
    for layer, top in tops.items():
        pairs = []
        for training_id in top["id"].tolist():
            maps = position_maps(memory, model, case.image, training_id, layers=[layer]).get(layer)
            pairs.append(_pair(task, training_id, maps))
        rows.append(plots.PairRow(layer, top, pairs))
    return rows


def _pair(task: Task, training_id: int, maps: PositionMaps | None) -> plots.ImagePair:
    image = pictures(task.train.raw[training_id], task.image_shape)
    return plots.ImagePair(image) if maps is None else plots.ImagePair(image, maps.test, maps.training)

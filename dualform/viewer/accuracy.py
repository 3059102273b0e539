"""How many test inputs of each task the model got right, at each stage of its training."""

from typing import Any

import torch

from dualform.viewer import code
from dualform.viewer.jobs import Progress
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.outputs import class_probabilities
from dualform.viewer.predictions import Predictions

_MAX_INPUTS = 1000  # of each task, spread evenly over all of them: the rest would change a per cent at most


def accuracies(run: OpenedRun, predictions: Predictions, progress: Progress) -> dict[str, Any] | None:
    """Measure accuracies; None where inputs have no labels, or nothing is known of the model."""
    if run.outputs is None or run.inputs is None or run.inputs.labels is None:
        return None
    indices: dict[str, list[int]] = {}
    for index in range(len(run.inputs)):
        indices.setdefault(run.task_of(index) or "", []).append(index)
    samples = {}
    for task, of_task in indices.items():
        places = torch.linspace(0, len(of_task) - 1, min(_MAX_INPUTS, len(of_task))).long()
        samples[task] = torch.tensor(of_task)[places]
    by_task: dict[str, list[float]] = {task: [] for task in samples}
    for number, step in enumerate(predictions.stops):
        progress(number / len(predictions.stops))
        network = predictions.model_at(step)
        for task, rows in samples.items():
            predicted = class_probabilities(network, run.inputs.inputs[rows]).argmax(dim=1)
            by_task[task].append(float((predicted == run.inputs.labels[rows]).float().mean()))
    return {
        "steps": predictions.stops,
        "tasks": by_task,
        "inputs": {task: len(rows) for task, rows in samples.items()},
        "python": "\n".join(code.accuracies(run, predictions.stops, _MAX_INPUTS)),
    }

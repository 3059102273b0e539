"""How many test inputs of each task the model got right, at each stage of its training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dualform.viewer import code
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.outputs import probabilities
from dualform.viewer.predictions import Predictions
from dualform.viewer.subject import task_of

_SAMPLE = 1000  # inputs of each task that are looked at: the rest would change a per cent at most


def accuracies(exhibit: Exhibit, predictions: Predictions, progress: Callable[[float], None]) -> dict[str, Any] | None:
    """None where inputs have no labels, or nothing is known of the model."""
    if exhibit.outputs is None or exhibit.inputs is None or exhibit.inputs.labels is None:
        return None
    samples = _samples(exhibit)
    found: dict[str, list[float]] = {task: [] for task in samples}
    for number, step in enumerate(predictions.stops):
        progress(number / len(predictions.stops))
        network = predictions.model_at(step)
        for task, rows in samples.items():
            right = probabilities(network, exhibit.inputs.inputs[rows]).argmax(dim=1) == exhibit.inputs.labels[rows]
            found[task].append(float(right.float().mean()))
    return {
        "steps": predictions.stops,
        "tasks": found,
        "inputs": {task: len(rows) for task, rows in samples.items()},
        "python": "\n".join(code.accuracies(exhibit, predictions.stops, _SAMPLE)),
    }


def _samples(exhibit: Exhibit) -> dict[str, Tensor]:
    """Numbers of inputs by task, spread evenly over all of them."""
    by_task: dict[str, list[int]] = {}
    assert exhibit.inputs is not None
    for index in range(len(exhibit.inputs)):
        by_task.setdefault(task_of(exhibit, index) or "", []).append(index)
    chosen = {task: torch.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).long() for task, rows in by_task.items()}
    return {task: torch.tensor(by_task[task])[places] for task, places in chosen.items()}

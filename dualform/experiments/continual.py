"""Measure what continual learning forgot, and how much of it comes back when the later task is muted.

The paper says that leaving out the second task's slots would bring the first task back; here it is done.
Two ways of going back differ a little. `until` is the network as it was after the first task. Muting
keeps the coefficients of the full run: momentum still adds what the first task had gathered after
its last step, and errors of the second task, which are left out, were computed in the joint run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from dualform.experiments.cases import SelectedInput
from dualform.experiments.tasks import Task
from dualform.experiments.training import accuracy

Accuracies = dict[str, dict[str, float]]  # view of the run -> task -> per cent


def accuracies(memory: dualform.Memory, model: nn.Module, tasks: Sequence[Task], first_steps: int) -> Accuracies:
    """Return the accuracies on both tasks: at the end, after the first task, and with either task muted."""
    first, second = tasks
    views = {
        "final": memory,
        "until_first_task": memory.until(first_steps),
        "without_second_task": memory.without(task=second.name),
        "without_first_task": memory.without(task=first.name),
    }
    networks = {name: view.model(model) for name, view in views.items()}
    return {name: {task.name: accuracy(network, task.test) for task in tasks} for name, network in networks.items()}


@dataclass(frozen=True)
class MutedPredictions:
    """Predictions for a digit that is mistaken after the second task: with nothing, one class, or all of it muted."""

    case: SelectedInput
    muted_task: str
    muted_class: str
    before: dict[str, float]  # probability by class name of the digit's own task
    after: dict[str, float]
    without_task: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.case.task.name,
            "index": self.case.index,
            "true": self.case.task.class_names[self.case.true],
            "muted": {"task": self.muted_task, "class": self.muted_class},
            "predicted_before": most_likely(self.before),
            "predicted_after": most_likely(self.after),
            "predicted_without_task": most_likely(self.without_task),
            "before": self.before,
            "after": self.after,
            "without_task": self.without_task,
        }


def most_likely(probabilities: Mapping[str, float]) -> str:
    """Return the class with the highest probability."""
    return max(probabilities, key=probabilities.__getitem__)


def predict_muted(memory: dualform.Memory, model: nn.Module, case: SelectedInput, second: Task) -> MutedPredictions:
    """Predict a digit with nothing muted, with only the second task's class that it was taken for, and with all of it.

    Args:
        memory: of the run.
        model: as it was trained.
        case: a digit of the first task that is mistaken.
        second: the second task.
    """
    without_class = memory.without(task=second.name, label=case.predicted).model(model)
    without_task = memory.without(task=second.name).model(model)
    with torch.no_grad():
        outputs = [network(case.image[None]).softmax(dim=1)[0] for network in (model, without_class, without_task)]
    probabilities = (dict(zip(case.task.class_names, output.tolist(), strict=True)) for output in outputs)
    return MutedPredictions(case, second.name, second.class_names[case.predicted], *probabilities)


def attention_matrices(
    memory: dualform.Memory, model: nn.Module, tasks: Sequence[Task]
) -> Mapping[str, NDArray[np.float64]]:
    """Return, by layer, how test inputs of each class distribute their attention over the training classes.

    Rows are classes of test inputs, columns those of training slots, tasks one after the other; each entry
    is the mean share of an input's attention, so that rows add up to 1.
    """
    spotlight = memory.attend(model, torch.cat([task.test.images for task in tasks]))
    starts = {task.name: number * len(task.class_names) for number, task in enumerate(tasks)}
    classes = np.concatenate([starts[task.name] + task.test.labels.numpy() for task in tasks])
    matrices = {}
    for layer, (totals,) in spotlight.collect(dualform.Total(by=("task", "label"), absolute=True)).items():
        columns = [starts[row["task"]] + row["label"] for row in totals.where(query=0).rows()]
        shares = np.zeros((len(classes), sum(len(task.class_names) for task in tasks)))
        shares[:, columns] = totals["total"].reshape(len(classes), -1)
        shares /= shares.sum(axis=1, keepdims=True)
        matrices[layer] = np.stack([shares[classes == number].mean(axis=0) for number in np.unique(classes)])
    return matrices

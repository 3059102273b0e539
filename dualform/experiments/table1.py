"""Measure Table 1 of the paper: how often the class with the most attention is the class that the network predicts.

For each layer, the class with the highest total attention is compared with the network's output, on
test inputs it gets wrong (with the target, and with the output) and on those it gets right. The same is measured
with weights multiplied by the norm of their values, and for two baselines: always the most frequent class, and the
class whose mean is nearest to the layer's input.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform.experiments.tasks import Task, TaskExamples
from dualform.experiments.training import predictions

Classes = NDArray[np.int64]
Agreement = dict[str, float]  # wrong_target, wrong_output, right: per cent
CASES = ("wrong_target", "wrong_output", "right")

# Mean and standard deviation of five networks, as printed in the paper.
PAPER_AGREEMENT = {
    "layer-0": {"wrong_target": (17.2, 2.7), "wrong_output": (49.5, 1.5), "right": (75.1, 0.0)},
    "layer-1": {"wrong_target": (18.0, 2.9), "wrong_output": (52.9, 2.9), "right": (78.8, 0.8)},
    "layer-2": {"wrong_target": (20.6, 2.6), "wrong_output": (60.1, 4.5), "right": (84.7, 1.1)},
}


@dataclass(frozen=True)
class Table1:
    """One network's numbers, by layer."""

    attention: dict[str, Agreement]
    valued: dict[str, Agreement]  # with each weight multiplied by |c_t| ||e_t||
    nearest_mean: dict[str, Agreement]
    frequency: Agreement


def measure(memory: dualform.Memory, model: nn.Module, task: Task) -> Table1:
    """Measure agreement on the whole test set of a task."""
    attention, valued = attended_classes(memory, model, task.test)
    output, target = predictions(model, task.test.images).numpy(), task.test.labels.numpy()

    def agreements(classes: Mapping[str, Classes]) -> dict[str, Agreement]:
        return {layer: agreement(attended, output, target) for layer, attended in classes.items()}

    most_frequent = np.full_like(target, int(task.train.labels.bincount().argmax()))
    return Table1(
        attention=agreements(attention),
        valued=agreements(valued),
        nearest_mean=agreements(nearest_means(model, task)),
        frequency=agreement(most_frequent, output, target),
    )


def attended_classes(
    memory: dualform.Memory, model: nn.Module, test: TaskExamples
) -> tuple[dict[str, Classes], dict[str, Classes]]:
    """Return, by layer, the class with the most attention for each input: of plain weights, and of valued ones."""
    spotlight = memory.attend(model, test.images)
    answers = spotlight.collect(
        dualform.Total(by="label", absolute=True), dualform.Total(by="label", absolute=True, valued=True)
    )
    plain = {layer: top_class(totals) for layer, (totals, _) in answers.items()}
    return plain, {layer: top_class(totals) for layer, (_, totals) in answers.items()}


def top_class(totals: dualform.Table) -> Classes:
    """Return the class with the highest total for each query."""
    classes = np.unique(totals["label"]).astype(np.int64)
    top: Classes = classes[totals["total"].reshape(-1, len(classes)).argmax(axis=1)]
    return top


def agreement(attended: Classes, output: Classes, target: Classes) -> Agreement:
    """Return how often attended classes equal the target and the output, in per cent; nan if there is no such input."""
    right = output == target

    def share(equal: NDArray[np.bool_]) -> float:
        return 100 * float(equal.mean()) if len(equal) else float("nan")

    return {
        "wrong_target": share((attended == target)[~right]),
        "wrong_output": share((attended == output)[~right]),
        "right": share((attended == target)[right]),
    }


def nearest_means(model: nn.Module, task: Task) -> dict[str, Classes]:
    """Return, by layer, the class whose mean over the training images is nearest to each input of the layer."""
    labels = task.train.labels
    training, test = layer_inputs(model, task.train.images), layer_inputs(model, task.test.images)
    nearest = {}
    for layer, inputs in training.items():
        means = torch.stack([inputs[labels == label].mean(dim=0) for label in labels.unique()])  # (classes, d_in)
        nearest[layer] = labels.unique()[torch.cdist(test[layer], means).argmin(dim=1)].numpy()
    return nearest


def layer_inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the input of each linear layer of a chain of modules."""
    inputs = {}
    with torch.no_grad():
        for name, module in model.named_children():
            if isinstance(module, nn.Linear):
                inputs[name] = images
            images = module(images)
    return inputs

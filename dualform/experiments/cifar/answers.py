"""Ask about whole images: attention summed over all positions of a test image, and of each training image.

    queries = image_queries(memory, model, images)      # by layer, one query an image: (images, d_in)
    memory.attend(queries)["conv-1"].top(3, per="id")   # training images, summed over their positions and visits
    position_maps(memory, model, image, 7)              # by layer, where in both images the attention comes from

A convolution has a query and a slot for each position. Attention is linear in the query, so the sum of all its queries
asks for the sum of all their attention weights: exact, and as cheap as one position.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform.experiments.cifar.network import layers_asked
from dualform.experiments.table1 import Classes, top_class
from dualform.experiments.tasks import Task

_IMAGES_AT_A_TIME = 100  # a convolution has hundreds of queries an image


@dataclass(frozen=True)
class PositionMaps:
    """Where the attention between a test image and a training image comes from, summed over all visits.

    Attributes:
        test: by position of the layer in the test image, (height, width).
        training: by position in the training image.
    """

    test: NDArray[np.float64]
    training: NDArray[np.float64]


def image_queries(memory: dualform.Memory, model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return, by layer that was recorded and can be asked, the sum of each image's queries: (images, d_in)."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for chunk in images.split(_IMAGES_AT_A_TIME):
        spotlight = memory.attend(model, chunk)
        for layer in layers_asked(model):
            if layer in spotlight:
                queries = spotlight[layer].queries  # (images * positions, d_in)
                parts[layer].append(queries.reshape(len(chunk), -1, queries.shape[1]).sum(dim=1))
    return {layer: torch.cat(queries) for layer, queries in parts.items()}


def attended_classes(memory: dualform.Memory, model: nn.Module, images: Tensor) -> dict[str, Classes]:
    """Return, by layer, the class with the most attention for each image, summed over positions."""
    spotlight = memory.attend(image_queries(memory, model, images))
    return {layer: top_class(totals) for layer, (totals,) in spotlight.collect(dualform.Total(by="label")).items()}


def position_maps(
    memory: dualform.Memory, model: nn.Module, image: Tensor, training_id: int, layers: Sequence[str] | None = None
) -> dict[str, PositionMaps]:
    """Return, by recorded layer that has positions, where the attention to one training image comes from.

    Args:
        memory: of a run in which images were neither shifted nor mirrored.
        model: as it was trained.
        image: the test image, (channels, height, width).
        training_id: tag `id` of the training image.
        layers: names of layers, by default all.
    """
    view = memory.where(id=training_id)
    spotlight, maps = view.attend(model, image[None]), {}
    for layer, sides in layer_sides(model, image).items():
        if layer not in spotlight or (layers is not None and layer not in layers):
            continue
        queries = spotlight[layer].queries  # (positions, d_in)
        by_query = spotlight[layer].total()["total"]
        slots = view.attend({layer: queries.sum(dim=0)[None]})[layer].top(view.slots(layer))
        in_order = slots["score"][np.argsort(slots["slot"])]  # of a visit, positions follow each other
        by_slot = in_order.reshape(-1, len(queries)).sum(axis=0)
        maps[layer] = PositionMaps(by_query.reshape(sides), by_slot.reshape(sides))
    return maps


def layer_sides(model: nn.Module, image: Tensor) -> dict[str, tuple[int, int]]:
    """Return height and width of the output of each convolution, in a chain of modules."""
    sides, maps = {}, image[None]
    with torch.no_grad():
        for name, module in model.named_children():
            maps = module(maps)
            if isinstance(module, nn.Conv2d):
                sides[name] = (maps.shape[2], maps.shape[3])
    return sides


def nearest_means(model: nn.Module, task: Task) -> dict[str, Classes]:
    """Return, by layer, the class whose mean input is nearest to that of each test image: a baseline without a run."""
    labels = task.train.labels
    known, sums = labels.unique(), dict[str, Tensor]()
    for images, own in zip(task.train.images.split(_IMAGES_AT_A_TIME), labels.split(_IMAGES_AT_A_TIME), strict=True):
        members = (own == known[:, None]).float()  # (classes, images)
        for layer, inputs in _inputs(model, images).items():
            sums[layer] = sums.get(layer, torch.zeros(1)) + members @ inputs  # (classes, numbers)
    counts = (labels == known[:, None]).sum(dim=1, keepdim=True)  # (classes, 1)
    nearest: dict[str, list[Any]] = defaultdict(list)
    for images in task.test.images.split(_IMAGES_AT_A_TIME):
        for layer, inputs in _inputs(model, images).items():
            nearest[layer].append(known[torch.cdist(inputs, sums[layer] / counts).argmin(dim=1)].numpy())
    return {layer: np.concatenate(classes) for layer, classes in nearest.items()}


def _inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the input of each convolution and of the output layer, as vectors: (images, numbers)."""
    inputs, asked = {}, layers_asked(model)
    with torch.no_grad():
        for name, module in model.named_children():
            if name in asked:
                inputs[name] = images.flatten(start_dim=1)
            images = module(images)
    return inputs

"""Test inputs to choose from, mistakes first: `inputs`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Refused
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.outputs import MOST
from dualform.viewer.requests import InputsRequest
from dualform.viewer.subject import task_of


def answer(exhibit: Exhibit, request: InputsRequest) -> dict[str, Any]:
    if request.class_ is not None and request.class_ >= len(exhibit.classes.every):
        raise Refused(f"there is no class {request.class_}; there are {len(exhibit.classes.every)}")
    order = _in_order(exhibit)
    if request.outcome is not None:
        order = order[_right(exhibit)[order] == (request.outcome == "right")]
    fitting = [
        index
        for index in order.tolist()
        if request.search in str(index) and (request.class_ is None or class_of(exhibit, index) == request.class_)
    ]
    page = fitting[request.start : request.start + request.count]
    return {"total": len(fitting), "inputs": [shown(exhibit, index) for index in page]}


def _in_order(exhibit: Exhibit) -> NDArray[np.int64]:
    """Mistakes first."""
    count = 0 if exhibit.inputs is None else min(len(exhibit.inputs), MOST)
    if exhibit.outputs is None or exhibit.outputs.right is None:
        return np.arange(count)
    return np.argsort(_right(exhibit), kind="stable")


def _right(exhibit: Exhibit) -> NDArray[np.bool_]:
    if exhibit.outputs is None or exhibit.outputs.right is None:
        raise Refused("whether inputs are classified correctly is not known: this needs the model and labels")
    found: NDArray[np.bool_] = exhibit.outputs.right.numpy()
    return found


def class_of(exhibit: Exhibit, index: int) -> int | None:
    """The true class of an input."""
    if exhibit.inputs is None or exhibit.inputs.labels is None:
        return None
    return exhibit.classes.number(task_of(exhibit, index), int(exhibit.inputs.labels[index]))


def shown(exhibit: Exhibit, index: int) -> dict[str, Any]:
    """An input as it stands in the list."""
    inputs, outputs = exhibit.inputs, exhibit.outputs
    predicted = None if outputs is None else int(outputs.predicted[index])
    return {
        "index": index,
        "label": None if inputs is None or inputs.labels is None else int(inputs.labels[index]),
        "class": class_of(exhibit, index),
        "task": task_of(exhibit, index),
        "predicted": predicted,
        "probability": None if outputs is None or predicted is None else float(outputs.probabilities[index, predicted]),
        "pixels": None if exhibit.pictures is None else exhibit.pictures.test(index),
    }

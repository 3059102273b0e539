"""Test inputs to choose from, mistakes first: `inputs`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Refused
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.outputs import MAX_INPUTS
from dualform.viewer.requests import InputsRequest


def answer(run: OpenedRun, request: InputsRequest) -> dict[str, Any]:
    """List the inputs that fit the filters of a request."""
    if request.class_ is not None and request.class_ >= len(run.classes.entries):
        raise Refused(f"there is no class {request.class_}; there are {len(run.classes.entries)}")
    right: NDArray[np.bool_] | None = None
    if run.outputs is not None and run.outputs.right is not None:
        right = run.outputs.right.numpy()
    indices = np.arange(0 if run.inputs is None else min(len(run.inputs), MAX_INPUTS))
    if right is not None:
        indices = np.argsort(right, kind="stable")  # mistakes first
    if request.outcome is not None:
        if right is None:
            raise Refused("whether inputs are classified correctly is not known: this needs the model and labels")
        indices = indices[right[indices] == (request.outcome == "right")]
    fitting = [
        index
        for index in indices.tolist()
        if request.search in str(index) and (request.class_ is None or run.class_of(index) == request.class_)
    ]
    page = fitting[request.start : request.start + request.count]
    return {"total": len(fitting), "inputs": [describe_input(run, index) for index in page]}


def describe_input(run: OpenedRun, index: int) -> dict[str, Any]:
    """Describe an input as it stands in the list."""
    predicted = None if run.outputs is None else int(run.outputs.predicted[index])
    probability = None
    if run.outputs is not None and predicted is not None:
        probability = float(run.outputs.probabilities[index, predicted])
    return {
        "index": index,
        "label": None if run.inputs is None or run.inputs.labels is None else int(run.inputs.labels[index]),
        "class": run.class_of(index),
        "task": run.task_of(index),
        "predicted": predicted,
        "probability": probability,
        "pixels": None if run.pictures is None else run.pictures.test(index),
    }

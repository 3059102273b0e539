"""Test inputs to choose from, mistakes first: `inputs`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.errors import Refused
from dualform.viewer.asked import Asked
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.outputs import MOST
from dualform.viewer.subject import task_of

_MOST_AT_ONCE = 500
_OUTCOMES = {"right": True, "wrong": False}


def answer(exhibit: Exhibit, asked: Asked) -> dict[str, Any]:
    start, count = asked.count("start"), asked.count("count", 1, _MOST_AT_ONCE)
    number, outcome, search = asked.count_or_none("class"), asked.text_or_none("outcome"), asked.text("search")
    asked.end()
    if outcome not in (None, *_OUTCOMES):
        raise Refused(f"'outcome' is 'right', 'wrong' or null, not {outcome!r}")
    if number is not None and number >= len(exhibit.classes.every):
        raise Refused(f"there is no class {number}; there are {len(exhibit.classes.every)}")
    order = _in_order(exhibit)
    if outcome is not None:
        order = order[_right(exhibit)[order] == _OUTCOMES[outcome]]
    fitting = [i for i in order.tolist() if search in str(i) and (number is None or class_of(exhibit, i) == number)]
    return {"total": len(fitting), "inputs": [shown(exhibit, i) for i in fitting[start : start + count]]}


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

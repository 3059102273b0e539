"""What a training hands on from step to step, as tensors by name: nested tuples of tensors, or nothing.

as_state((h, c))                    # {"carried/value/0": ..., "carried/value/1": ...}
from_tensors({"0": h, "1": c})      # (h, c)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dualform.errors import RecipeError
from dualform.recorder.snapshot import State, as_column, is_storable

PREFIX = "carried/value"


def detached(state: Any) -> Any:
    """Return the same numbers without what they were computed from."""
    return None if state is None else _detached(state)


def _detached(state: Any) -> Any:
    if isinstance(state, Tensor) and is_storable(state):
        return state.detach()
    if isinstance(state, tuple | list) and state:
        return tuple(_detached(entry) for entry in state)
    kind = f"a {state.dtype} tensor" if isinstance(state, Tensor) else type(state).__name__
    raise RecipeError(
        f"losses hands on {kind}: a state is None, a tensor, or a tuple of tensors, which snapshots can hold"
    )


def as_state(state: Any, name: str = PREFIX) -> State:
    """Return the columns of a snapshot."""
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {name: as_column(state)}
    return {path: column for i, entry in enumerate(state) for path, column in as_state(entry, f"{name}/{i}").items()}


def from_tensors(tensors: Mapping[str, Tensor]) -> Any:
    """Return the state of tensors by their paths, such as "0/1"."""
    if not tensors:
        return None
    if "" in tensors:
        return tensors[""]
    heads = sorted({int(path.partition("/")[0]) for path in tensors})
    parts = {
        head: {path.partition("/")[2]: t for path, t in tensors.items() if path.partition("/")[0] == str(head)}
        for head in heads
    }
    return tuple(from_tensors(parts[head]) for head in heads)

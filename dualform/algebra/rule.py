"""What dualform has to know of an optimiser.

    RULE = Rule(COLUMNS, read, step, MOMENTUM)                      # linear: SGD
    RULE = Rule(COLUMNS, read, step, MOMENTUM, MOMENTS, advance)    # divides elementwise: Adam and friends

Columns are the rule's own, and nobody else asks for one by name: an optimiser may call its learning rate as it likes.
One file each, and that is all it takes: see docs/optimisers.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dualform.algebra.step import Number, Step

Line = Mapping[str, Any]  # a ledger line by column: numbers; for linear optimisers also arrays of them
Moments = Mapping[str, Tensor]  # entries of the optimiser's state, shaped like the parameter


def _nothing_to_advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    return moments


def _downhill(line: Line) -> Number:
    return 1.0


def _no_decay(line: Line) -> Number:
    return 0.0


@dataclass(frozen=True)
class Rule:
    """An optimiser: the names in its ledger lines, the reader that fills them, the step they mean.

    One that divides elementwise has moments. `advance` takes them from before a step to after it, given
    the signed and decayed gradient g = s G + w W; an entry that is not there yet is zero. `step` is given those after.
    `sign` is s and `decay` is w: the same numbers as in the Step, but known before there are moments to make it of.
    """

    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float, ...]]
    step: Callable[[Line, Moments], Step]
    momentum: str | None  # the entry of the optimiser's state that is m of the Step form
    moments: tuple[str, ...] = ()  # and those that have to be replayed
    advance: Callable[[Line, Tensor, Moments], Moments] = _nothing_to_advance
    sign: Callable[[Line], Number] = _downhill
    decay: Callable[[Line], Number] = _no_decay

    @property
    def elementwise(self) -> bool:
        """Coefficients are matrices the shape of the parameter, and not numbers."""
        return bool(self.moments)

    @property
    def magnifies_rounding(self) -> bool:
        """Whether a small gradient may make a large step: then what half precision loses of values matters."""
        return bool(self.moments)

"""Define what dualform has to know of an optimiser.

    RULE = Rule(COLUMNS, read, step, MOMENTUM)                      # linear: SGD
    RULE = Rule(COLUMNS, read, step, MOMENTUM, MOMENTS, advance)    # divides elementwise: Adam and friends

Columns are the rule's own, and nobody else asks for one by name: an optimiser may call its learning rate as it likes.
One file each, and that is all it takes: see docs/guides/optimisers.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dualform.algebra.step import Number, Step

WEIGHT = "weight"  # among the moments of a rule that reads it: the parameter before the step
Line = Mapping[str, Any]  # a ledger line by column: numbers; for linear optimisers also arrays of them
Moments = Mapping[str, Tensor]  # entries of the optimiser's state, and what a rule adds to them for its step


@dataclass(frozen=True)
class Rule:
    """An optimiser: the names in its ledger lines, the reader that fills them, the step they mean.

    Args:
        columns: Names of the numbers in a ledger line.
        read: Returns a parameter's ledger line just before a step, given its group of options and its state.
        step: Returns the Step that a ledger line means, given the moments after it.
        momentum: The entry of the optimiser's state that is m of the Step form; None: there is none.
        moments: The entries that have to be replayed, of an optimiser that divides elementwise.
        advance: Takes the moments from before a step to after it, given the signed and decayed gradient
            g = s G + w W; an entry that is not there yet is zero. It may add entries for `step` to read.
        sign: Returns s, as the Step has it, but known before there are moments to make one of.
        decay: Returns w, likewise.
        reads_weight: Whether moments depend on the parameter itself: `advance` finds it among them, as WEIGHT.
        joint: Whether an entry of the parameter may matter to what becomes of all others, as by a mean over rows.
        matrices: Whether alpha and beta multiply a parameter, which is a matrix, as matrices: symmetric ones, from the
            left where it has no more rows than columns, else from the right.
        remainder: Returns what the optimiser's own rounding adds to a step, given the signed gradient and the moments
            after it: subtracted from the weight times the Step's `rest`. It is too large to be left out.
    """

    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float, ...]]
    step: Callable[[Line, Moments], Step]
    momentum: str | None
    moments: tuple[str, ...] = ()
    advance: Callable[[Line, Tensor, Moments], Moments] = lambda line, gradient, moments: moments
    sign: Callable[[Line], Number] = lambda line: 1.0
    decay: Callable[[Line], Number] = lambda line: 0.0
    reads_weight: bool = False
    joint: bool = False
    matrices: bool = False
    remainder: Callable[[Line, Tensor, Moments], Tensor] | None = None

    @property
    def elementwise(self) -> bool:
        """Whether coefficients are matrices the shape of the parameter, and not numbers."""
        return bool(self.moments) and not self.matrices

    @property
    def magnifies_rounding(self) -> bool:
        """Whether a small gradient may make a large step: then what half precision loses of values matters."""
        return bool(self.moments)

    def moments_after(self, line: Line, gradient: Tensor, moments: Moments, weight: Tensor) -> Moments:
        """Take moments one step on, given the weight before it."""
        return self.advance(line, gradient, {**moments, WEIGHT: weight} if self.reads_weight else moments)

    def times(self, coefficient: Number, matrix: Tensor) -> Tensor:
        """Return what a coefficient makes of a gradient, or of what else is shaped like the parameter."""
        if not self.matrices or not isinstance(coefficient, Tensor):
            product: Tensor = coefficient * matrix
            return product
        factor = coefficient.to(matrix.dtype)
        return factor @ matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix @ factor

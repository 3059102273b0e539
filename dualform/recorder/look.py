"""A layer in one step, as the audit looks at it, and what the audit finds."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.kinds import Probe
from dualform.recorder.capture import Capture, Pass
from dualform.recorder.sight import Seen

Array = NDArray[np.float64]

# What rounding may leave over, elementwise: SLACK eps |E|^T |X| |r|. The bound uses absolute values,
# not the gradient's size, since a gradient may cancel to nothing (a bias before a BatchNorm does).
SLACK = 32.0
# And, of the gradient's own size, where it was rounded to half precision as a whole.
_LOW = {dtype: 4.0 * torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}


class Look(NamedTuple):
    """A layer's gradients seen through the probe, and its passes by their number."""

    probe: Probe
    seen: Seen
    passes: Mapping[int, Pass]

    @property
    def captures(self) -> list[Capture]:
        """Of all passes."""
        return [capture for one in self.passes.values() for capture in one.captures]

    def products(self) -> Tensor:
        """What went through the layer in all passes, seen through the probe: (rows, d_out)."""
        first, *others = self.captures
        return sum((capture.product for capture in others), start=first.product)

    @property
    def rounding(self) -> float:
        """What rounding may leave over, of the gradient's own size."""
        return SLACK * self.seen.eps + self.low

    @property
    def low(self) -> float:
        """What rounding the whole gradient to half precision, as autocast does, may leave over."""
        return max([_LOW.get(capture.precision, 0.0) for capture in self.captures], default=0.0)


class Explained(NamedTuple):
    """A layer's factors (passes, trained parts) in one step, and the share of its gradient left over."""

    factors: Array
    residual: float


def array(small: Tensor) -> Array:
    """A small tensor as float64 on the CPU. numpy has no name for bfloat16, so torch widens first."""
    return (small.float() if small.dtype == torch.bfloat16 else small).cpu().numpy().astype(np.float64)

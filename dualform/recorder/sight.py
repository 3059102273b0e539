"""The gradients of a step as a probe sees them.

They are looked at just before the optimiser reads them, so that they come from memory once for both. What changes them
after that, a closure or somebody else's hook, makes other tensors of them or counts up their versions; then they are
looked at again after the step. Fused optimisers may unscale them without counting, and are looked at afterwards only.
A hook that comes after the recorder's own and changes them through `.data`, which nothing counts, shows in the
certificate only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.kinds import Probe
from dualform.recorder.layers import Recorded


class Seen(NamedTuple):
    """What a probe made of a layer's gradients, in memory of its own."""

    parts: Sequence[Tensor]  # of each trained use, flat
    stepped: Sequence[int]  # which trained uses have a gradient at all,
    idle: Sequence[int]  # and which have none
    eps: float  # of the gradients' precision, at least float32's


class Sight(NamedTuple):
    """What was seen, and of which gradients."""

    seen: Seen
    parameters: Sequence[Tensor]  # of each trained use
    gradients: Sequence[Tensor | None]
    versions: Sequence[int]

    @property
    def holds(self) -> bool:
        """Whether the gradients still are what was seen."""
        now = [parameter.grad for parameter in self.parameters]
        same = all(one is other for one, other in zip(now, self.gradients, strict=True))
        return same and _versions(now) == self.versions


def see(entry: Recorded, probe: Probe, step: int) -> Sight:
    parameters = entry.trained()
    gradients = [parameter.grad for parameter in parameters]
    stepped = [i for i, gradient in enumerate(gradients) if gradient is not None]
    idle = [i for i, gradient in enumerate(gradients) if gradient is None]
    if not stepped:
        return Sight(Seen([], stepped, idle, 0.0), parameters, gradients, [])
    known = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    for use, gradient in zip(entry.layer.trained, known, strict=True):
        if gradient.layout != torch.strided:
            raise RecordingError(
                f"step {step}: the gradient of {use.parameter.name!r} is sparse, which is not supported"
            )
    eps = _EPS.get(known[0].dtype, _EPS[torch.float32])
    with torch.no_grad():
        seen = Seen(probe.of_gradients(known), stepped, idle, eps)
    return Sight(seen, parameters, gradients, _versions(gradients))


_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


def _versions(gradients: Sequence[Tensor | None]) -> list[int]:
    return [gradient._version for gradient in gradients if gradient is not None]

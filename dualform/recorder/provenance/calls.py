"""Follow calls of a model, and choose the tags of each: those given before it, or right after it.

    call.layout(layer, number, leading)         # whose the rows of a layer are; None: to be read by their shape
    choose_tags(calls, step)

A call is an outermost one: of the model, mostly, or of a part of it that somebody calls.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.recorder.provenance.known import Known
from dualform.recorder.provenance.layout import Layout
from dualform.recorder.provenance.trial import Arguments, Place
from dualform.recorder.tags import Tags

NO_TAGS = Tags({})


@dataclass(eq=False)
class Call:
    """An outermost call of a module, and what is known of the rows in it."""

    number: int
    module: nn.Module
    early: Tags  # in force when it began
    graded: bool
    recomputed: bool  # inside of a backward pass, by a checkpoint
    arguments: Arguments | None  # until the step
    frame: FrameType | None  # in which it runs, until it ends
    autocast: Sequence[tuple[str, torch.dtype]] = ()  # by device, where the experiment may come later
    expected: int | None = None  # the number of examples, as far as tags tell
    late: Tags | None = None  # the first ones given after it
    followed: bool = False  # back, through a recorded layer
    known: Known | None = None
    own: dict[Place, Layout] = field(default_factory=dict)  # of rows that move with the data
    own_keys: dict[Place, Tensor] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # that each layer was called
    unmatched: dict[Place, Tensor] = field(default_factory=dict)  # keys of calls that nothing is known of
    deferred: list[tuple[str, int]] = field(default_factory=list)  # calls without gradients: a checkpoint's, perhaps
    trouble: dict[Place, str] = field(default_factory=dict)

    @property
    def interrupted(self) -> bool:
        """Whether it has come to an end that hooks are not told of: an interrupt is no Exception."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None

    def layout(self, layer: str, number: int, leading: tuple[int, ...]) -> Layout | None:
        """Return whose the rows of a layer's call are; None if that is not known, and their shape has to tell."""
        place = layer, number
        if self.known is not None and self.known.error is not None:
            raise self.known.error
        if self.known is None or self.known.batch is None:
            return None
        layout = self.own.get(place) or self.known.layout(place, leading)
        if layout is None or place in self.trouble:
            why = self.trouble.get(place, "its rows are others than in the experiment")
            raise RecordingError(
                f"layer {layer!r} got rows of shape {leading}, and whose they are depends on the data: {why}. Leave "
                "the layer out with exclude=..., or have tags read by the shape of the rows with provenance=False"
            )
        return layout

    def forbid_moving(self) -> None:
        """Say what is in the way where rows move with the data, and the call that shows whose they are is past."""
        moving: set[str] = self.known.moving if self.known else set()
        for layer in moving:
            places = ((layer, number) for number in range(self.times[layer]))
            self.trouble |= dict.fromkeys(places, "call recorder.tag before the forward pass, not after it")


def choose_tags(calls: Iterable[Call], step: int) -> dict[Call, Tags]:
    """Return the tags of the calls that are in a step: those given before each, or those given right after.

    If the first has some from before, so have all; else each pass needs its own after it. A pass is as many calls as
    there are different modules.
    """
    ordered = sorted(calls, key=lambda call: call.number)
    if not ordered or ordered[0].early.kinds or all(call.late is None for call in ordered):
        return {call: call.early for call in ordered}
    seen: set[tuple[int, int]] = set()
    for call in ordered:
        covered = id(call.late), id(call.module)
        if call.late is None or covered in seen:
            problem = "some have none" if call.late is None else "one recorder.tag follows several of them"
            raise RecordingError(
                f"step {step}: tags were given after the first forward pass, so that each has its own after it, but "
                f"{problem}: call recorder.tag before every forward pass of a step. The steps before it are kept"
            )
        seen.add(covered)
    return {call: call.late for call in ordered if call.late is not None}

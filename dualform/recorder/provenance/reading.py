"""Find out which axis of a module's arguments, and of its outputs, is the batch: permute the examples and look.

A reading says of each tensor among the arguments along which axis its examples are. It is right if the module, called
with examples in another order, returns its outputs in that order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_field
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.recorder.layers import SEED
from dualform.recorder.provenance.layout import Batch, Form, Owners, forms
from dualform.recorder.provenance.rows import Agreement, agreement, origins
from dualform.recorder.provenance.signature import replace, tensors
from dualform.recorder.provenance.trial import BatchOfOne, Subject, Trial, Unproven, attempt

Shape = tuple[int, ...]
Axes = tuple[int | None, ...]  # of each tensor among the arguments; None: it is the same for all examples

_MOST_READINGS = 8  # of one axis of the main input


class OutputAxis(NamedTuple):
    """Where the examples are in one of the outputs."""

    output: int
    axis: int
    form: Form  # of the entries along the axis

    def fits(self, output: Tensor, batch: int) -> bool:
        """Return whether an output still has that axis."""
        return self.axis < output.dim() and self.form.owners((output.shape[self.axis],), batch) is not None

    def scaled(self, output: Tensor, factors: NDArray[np.float64]) -> Tensor:
        """Return an output, or its gradient, with each example multiplied by a factor."""
        size = output.shape[self.axis]
        owners = self.form.owners((size,), len(factors))
        shape = [size if axis == self.axis else 1 for axis in range(output.dim())]
        return output * torch.from_numpy(factors[owners]).to(output).view(shape)


@dataclass(frozen=True)
class Reading:
    """A reading that holds, and the trial that shows it."""

    batch: Batch
    outputs: Sequence[OutputAxis]
    order: Owners  # example order[b] has taken the place of example b
    permuted: Trial
    evidence: "Evidence"


class Evidence(NamedTuple):
    """What outputs say of a reading; the more the better, in this order."""

    sure: bool  # outputs differ between examples, and are permuted as they should be
    strict: bool  # no output has changed in another way
    complete: bool  # none that has an axis as long as the batch has stayed as it was


class MainInput(NamedTuple):
    """The tensor among the arguments that tells how many examples there are."""

    shapes: Sequence[Shape]  # of all tensors
    number: int
    axes: Sequence[int]  # that may be the batch


def main_input(subject: Subject, expected: int | None) -> MainInput:
    """Return which tensor is the main input; raises Unproven if there is none, or only one example."""
    shapes = [tuple(tensor.shape) for tensor in tensors(subject.arguments)]
    sized = [number for number, shape in enumerate(shapes) if shape]
    fitting = [number for number in sized if expected in shapes[number][:2]]
    if not sized:
        raise Unproven("no argument is laid out by examples")
    main = shapes[(fitting or sized)[0]]
    axes = [axis for axis, size in enumerate(main[:2]) if not fitting or size == expected]
    if main[axes[0]] < 2:
        raise BatchOfOne("a batch of one shows no difference between examples")
    return MainInput(shapes, (fitting or sized)[0], [axis for axis in axes if main[axis] > 1])


def find_reading(subject: Subject, first: Trial, main: MainInput) -> Reading:
    """Return which axis is the batch; raises Unproven if none can be told."""
    if not any(output.dim() for output in first.outputs):
        raise Unproven("the model returns no tensor that is laid out by examples (a loss only?)")
    readings = [reading for axis in main.axes if (reading := _of_axis(subject, first, main, axis)) is not None]
    readings = [reading for reading in readings if reading.evidence.sure or len(main.axes) == 1]
    readings.sort(key=lambda reading: reading.evidence, reverse=True)  # stable: the first axis goes first
    if not readings:
        again = attempt(subject).outputs
        same = len(again) == len(first.outputs) and all(map(torch.equal, first.outputs, again))
        raise Unproven("no output shows which axis is the batch" if same else "two equal calls in evaluation differ")
    best, *others = readings
    either = any(other.evidence.strict and other.batch.size == best.batch.size for other in others)
    return replace_field(best, batch=replace_field(best.batch, either=either))


def _of_axis(subject: Subject, first: Trial, main: MainInput, axis: int) -> Reading | None:
    """Return the most plausible reading with the batch along an axis of the main input, if any holds."""
    shape, best = main.shapes[main.number], None
    batch = Batch(shape[axis], main.number, axis, shape)
    order = _cycle(batch.size)
    for axes in islice(_axes(main.shapes, main.number, axis), _MOST_READINGS):
        try:
            permuted = attempt(subject, partial(_permuted, axes=axes, order=torch.from_numpy(order)))
        except Unproven:
            continue  # sizes that only happen to be equal
        outputs, evidence = _permuted_outputs(first.outputs, permuted.outputs, order, axis)
        if outputs and (best is None or evidence > best.evidence):
            best = Reading(batch, outputs, order, permuted, evidence)
        if best is not None and all(best.evidence):
            break
    return best


def _cycle(size: int) -> Owners:
    """Return an order in which no example stays where it is."""
    chain = np.random.default_rng(SEED).permutation(size)
    order = np.empty(size, dtype=np.int64)
    order[chain] = np.roll(chain, 1)
    return order


def _axes(shapes: Sequence[Shape], main: int, axis: int) -> Iterator[Axes]:
    """Yield which axes of the arguments may be the batch, the most plausible first."""
    options = [[axis] if number == main else _options(shape, shapes[main], axis) for number, shape in enumerate(shapes)]
    usual = tuple(of_tensor[0] for of_tensor in options)
    yield usual
    for number, of_tensor in enumerate(options):
        for other in of_tensor[1:]:
            yield (*usual[:number], other, *usual[number + 1 :])
    if sum(len(of_tensor) > 1 for of_tensor in options) > 1:
        yield tuple(axis if number == main else None for number in range(len(shapes)))


def _options(shape: Shape, main: Shape, axis: int) -> list[int | None]:
    size = main[axis]
    axes: list[int | None] = [other for other in range(len(shape)) if shape[other] == size]
    if axis in axes:
        axes.remove(axis)
        axes.insert(0, axis)
    # Time by time is a mask, unless the main input is as wide as the batch as well
    mask = shape[-2:] == (size, size) and (axis not in axes or (len(shape) == 2 and shape != main[:2]))
    return [None, *axes] if mask else [*axes, None]


def _permuted(arguments: Any, axes: Axes, order: Tensor) -> Any:
    numbers = count()
    made: dict[tuple[int, int], Tensor] = {}  # what is passed twice stays the same tensor

    def permute(tensor: Tensor) -> Tensor:
        axis = axes[next(numbers)]
        if axis is None:
            return tensor
        return made.setdefault((id(tensor), axis), tensor.index_select(axis, order.to(tensor.device)))

    return replace(arguments, permute)


def _permuted_outputs(
    before: Sequence[Tensor], after: Sequence[Tensor], order: Owners, usual: int
) -> tuple[list[OutputAxis], Evidence]:
    """Return the outputs that are permuted, and what all outputs say of the reading.

    Where all examples are alike, or all outputs zero, they could be along any axis: the main input's is taken.
    """
    if [tensor.shape for tensor in before] != [tensor.shape for tensor in after]:
        return [], Evidence(False, False, False)
    axes_of_outputs, sure, strict, complete = [], False, True, True
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        one, other = one.detach(), other.detach()
        axes = _permuted_axes(number, one, other, order)
        certain = [axis for axis, verdict in axes if verdict is Agreement.YES]
        possible = [axis for axis, _ in axes if len(axes) == 1 or axis.axis == usual]
        if certain or possible:
            axes_of_outputs.append((certain or possible)[0])
            sure |= bool(certain)
        elif not axes and len(order) in one.shape:
            stayed = _stayed(one, other)
            complete &= not stayed
            strict &= stayed or _crossed(one, other, order)
    return axes_of_outputs, Evidence(sure, strict, complete)


def _permuted_axes(number: int, before: Tensor, after: Tensor, order: Owners) -> list[tuple[OutputAxis, Agreement]]:
    """Return the axes along which an output may be permuted."""
    permuted: list[tuple[OutputAxis, Agreement]] = []
    for axis, size in enumerate(before.shape):
        if size % len(order) or (size > len(order) and axis > 1):
            continue
        one, other = (tensor.movedim(axis, 0).reshape(size, -1) for tensor in (before, after))
        for form, owners in forms((size,), len(order)):
            origin = origins(owners, order) if form.name in ("axis", "blocks", "cycle") else None
            verdict = Agreement.NO if origin is None else agreement(one, other, origin)
            if verdict is not Agreement.NO:
                permuted.append((OutputAxis(number, axis, form), verdict))
                break  # the forms that follow say the same, or fit by chance
    return permuted


def _stayed(before: Tensor, after: Tensor) -> bool:
    """Return whether an output is the same for all examples."""
    whole = np.zeros(1, dtype=np.int64)
    return agreement(before.reshape(1, -1), after.reshape(1, -1), whole) is not Agreement.NO


def _crossed(before: Tensor, after: Tensor, order: Owners) -> bool:
    """Return whether an output compares all examples with all."""
    index = torch.from_numpy(order).to(before.device)
    axes = [axis for axis, size in enumerate(before.shape) if size == len(order)]
    return len(axes) > 1 and _stayed(before.index_select(axes[0], index).index_select(axes[-1], index), after)

"""Put together what all processes of a training know of some steps, so that each of them audits the same.

    steps, over = exchange(world, layers, steps, first, ...)    # evidence with the passes of all processes
    for step in audit(steps, first, world):
        own_part(step, world)                                   # what this process records of it

DistributedDataParallel leaves the mean of all processes' gradients in each of them. So what went through a layer in a
pass counts 1 / size here, and has a factor of 1 unless something else was done to the gradient. Passes are numbered by
when they came, the last ones of all processes last, and by process. Each message has a few numbers for each layer.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dualform.errors import RecordingError, listing
from dualform.recorder.audit import AuditedStep
from dualform.recorder.captures import Pass, Told
from dualform.recorder.evidence import SLACK, GradientView, LayerEvidence, StepEvidence
from dualform.recorder.layers import RecordedLayer
from dualform.recorder.world import World
from dualform.store.chapter import NO_ACCOUNTS


class LayerMessage(NamedTuple):
    """A layer in one step of one process."""

    view: GradientView
    passes: Mapping[
        int, tuple[bool, list[Told]]
    ]  # by number within the step: whether it was accumulated, and its calls


class Message(NamedTuple):
    """Some steps of one process."""

    first: int
    steps: Sequence[Mapping[str, LayerMessage]]
    idle: bool  # whether it has run out of batches, and takes no more steps
    over: bool  # whether all have


def exchange(
    world: World, layers: Mapping[str, RecordedLayer], steps: Sequence[StepEvidence], first: int, idle: bool, over: bool
) -> tuple[list[StepEvidence], bool]:
    """Return the evidence of steps, from number `first` on, with the passes of all processes; and whether it is over.

    All processes have to call this. One that has run out of batches gets the steps that others took without it, too.
    """
    own = [_renumbered(step, world) for step in steps]
    messages = world.gather(Message(first, [_told(step) for step in own], idle, over))
    taken = {(message.first, len(message.steps)) for message in messages if not message.idle}
    if len(taken) > 1 or first not in {begun for begun, _ in taken}:
        ends = [message.first + len(message.steps) for message in messages]
        raise RecordingError(
            f"the processes of the training have taken different numbers of steps: {listing(ends)}. Step the "
            "optimiser, sync and stop in all of them alike. The steps before that are kept"
        )
    own += [StepEvidence({}, [], NO_ACCOUNTS)] * (taken.pop()[1] - len(own))
    together = [
        step._replace(
            layers=_together(
                layers,
                {evidence.layer.name: evidence.passes for evidence in step.layers},
                {rank: message.steps[i] for rank, message in enumerate(messages) if i < len(message.steps)},
                world,
                first + i,
            )
        )
        for i, step in enumerate(own)
    ]
    return together, any(message.over for message in messages)


def own_part(step: AuditedStep, world: World) -> AuditedStep:
    """Return an audited step with the passes of this process only, and what each was of the step's gradient."""
    layers, explanations = [], []
    for evidence, explained in zip(step.evidence.layers, step.explanations, strict=True):
        mine = [number % world.size == world.rank for number in evidence.passes]
        passes = {number: of_pass for number, of_pass in evidence.passes.items() if number % world.size == world.rank}
        layers.append(evidence._replace(passes=passes))
        explanations.append(explained._replace(factors=explained.factors[np.array(mine, dtype=bool)] / world.size))
    return step._replace(evidence=step.evidence._replace(layers=layers), explanations=explanations)


def _renumbered(step: StepEvidence, world: World) -> StepEvidence:
    """Number the passes of a step: the last one of every process gets the highest numbers."""
    numbers = sorted({number for evidence in step.layers for number in evidence.passes})
    place = {number: (i - len(numbers)) * world.size + world.rank for i, number in enumerate(numbers)}
    layers = [
        evidence._replace(
            view=evidence.view._replace(products=[as_told(product) for product in evidence.view.products]),
            passes={place[number]: _counted(of_pass, world.size) for number, of_pass in evidence.passes.items()},
        )
        for evidence in step.layers
    ]
    return step._replace(layers=layers)


def _counted(of_pass: Pass, size: int) -> Pass:
    captures = [capture._replace(product=as_told(capture.product) / size) for capture in of_pass.captures]
    return of_pass._replace(captures=captures)


def as_told(product: Tensor) -> Tensor:
    """Return what a probe saw, as it is sent: float64 on the CPU."""
    return product.detach().cpu().double()


def _told(step: StepEvidence) -> dict[str, LayerMessage]:
    return {
        evidence.layer.name: LayerMessage(
            evidence.view,
            {
                number: (of_pass.accumulated, [Told(c.product, c.slots, c.precision) for c in of_pass.captures])
                for number, of_pass in evidence.passes.items()
            },
        )
        for evidence in step.layers
    }


def _together(
    layers: Mapping[str, RecordedLayer],
    own: Mapping[str, Mapping[int, Pass]],
    messages: Mapping[int, Mapping[str, LayerMessage]],
    world: World,
    number: int,
) -> list[LayerEvidence]:
    """Return the layers of a step with the passes of all processes, and the gradients as the first one saw them."""
    first, *others = messages.values()
    for rank, message in zip([*messages][1:], others, strict=True):
        if different := {*message} ^ {*first}:
            raise RecordingError(
                f"step {number}: process {rank} has gradients for other layers than process 0: {listing(different)}"
            )
        if name := next((name for name in first if not _agree(first[name].view, message[name].view)), None):
            raise RecordingError(
                f"step {number}, layer {name!r}: its gradient in process {rank} is not the one in process 0: is it "
                "changed in one of them only, or not averaged (no_sync in the last pass before the step)?"
            )
    evidence = []
    for name, of_first in first.items():
        passes = {
            place: Pass(calls, accumulated)
            for rank, message in messages.items()
            if rank != world.rank
            for place, (accumulated, calls) in message[name].passes.items()
        }
        merged = {**passes, **own.get(name, {})}
        evidence.append(LayerEvidence(layers[name], of_first.view, {place: merged[place] for place in sorted(merged)}))
    return evidence


def _agree(one: GradientView, other: GradientView) -> bool:
    """Return whether two processes step with the same gradient; that both are not finite is found by the audit."""
    if [*one.stepped] != [*other.stepped]:
        return False
    pairs = [(a, b) for a, b in zip(one.products, other.products, strict=True) if a.isfinite().all()]
    return all(a.shape == b.shape and float((a - b).norm()) <= SLACK * one.eps * float(a.norm()) for a, b in pairs)

"""Put together what all processes of a training know of some steps, so that each of them audits the same.

    exchanged = exchange(world, steps, first)       # evidence with the passes of all processes
    for step in audit(exchanged, first, world):
        own_part(step, world)                       # what this process records of it

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
from dualform.recorder.world import World


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


def exchange(world: World, steps: Sequence[StepEvidence], first: int) -> list[StepEvidence]:
    """Return the evidence of steps, from number `first` on, with the passes of all processes; collective."""
    own = [_renumbered(step, world) for step in steps]
    messages = world.gather(Message(first, [_told(step) for step in own]))
    counts = {(message.first, len(message.steps)) for message in messages}
    if len(counts) > 1:
        taken = [message.first + len(message.steps) for message in messages]
        raise RecordingError(
            f"the processes of the training have taken different numbers of steps: {listing(taken)}. Step the "
            "optimiser, sync and stop in all of them alike. The steps before that are kept"
        )
    return [
        step._replace(layers=_together(step, [message.steps[i] for message in messages], world, first + i))
        for i, step in enumerate(own)
    ]


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
    step: StepEvidence, messages: Sequence[Mapping[str, LayerMessage]], world: World, number: int
) -> list[LayerEvidence]:
    """Return the layers of a step with the passes of all processes, and the gradients as the first one saw them."""
    for rank, message in enumerate(messages):
        if different := {*message} ^ {*messages[0]}:
            raise RecordingError(
                f"step {number}: process {rank} has gradients for other layers than process 0: {listing(different)}"
            )
    layers = []
    for evidence in step.layers:
        name = evidence.layer.name
        told = [message[name] for message in messages]
        for rank, of_layer in enumerate(told):
            if not _agree(told[0].view, of_layer.view):
                raise RecordingError(
                    f"step {number}, layer {name!r}: its gradient in process {rank} is not the one in process 0: is "
                    "it changed in one of them only, or not averaged (no_sync in the last pass before the step)?"
                )
        passes = {
            place: Pass(calls, accumulated)
            for rank, of_layer in enumerate(told)
            if rank != world.rank
            for place, (accumulated, calls) in of_layer.passes.items()
        }
        merged = {**passes, **evidence.passes}
        layers.append(evidence._replace(view=told[0].view, passes={place: merged[place] for place in sorted(merged)}))
    return layers


def _agree(one: GradientView, other: GradientView) -> bool:
    """Return whether two processes step with the same gradient; that both are not finite is found by the audit."""
    if [*one.stepped] != [*other.stepped]:
        return False
    pairs = [(a, b) for a, b in zip(one.products, other.products, strict=True) if a.isfinite().all()]
    return all(a.shape == b.shape and float((a - b).norm()) <= SLACK * one.eps * float(a.norm()) for a, b in pairs)

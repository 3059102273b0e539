"""Is a recipe that of a run? The model it makes, its optimisers, its batches, and its losses in the first steps.

check_beginning(run, training)      # raises, or leaves the training before its first step
compare_first_steps(run, training)  # takes some
"""

from math import isclose

import torch

from dualform.errors import RecipeError, listing
from dualform.kinds.names import named_parameters
from dualform.recipe.training import Training
from dualform.recorder.plan import optimizer_name
from dualform.store import Run
from dualform.store.chapter import Witness
from dualform.store.schema import STATE_PARAMETERS

_FIRST_STEPS = 4  # the losses of all but one of them follow updates
_ALIKE, _ALIKE_HALF = 1e-4, 1e-2  # losses are the same but for rounding, as on another machine; in half precision


def check_beginning(run: Run, training: Training) -> None:
    """Raise unless a recipe makes the model that a run began with, and batches of the same examples."""
    first, repetition = run.shards[0], run.manifest.recipe
    assert repetition is not None
    if repetition.optimizers != len(training.optimizers):
        raise RecipeError(
            f"the recipe has {len(training.optimizers)} optimisers, the run was trained with {repetition.optimizers}"
        )
    names = [optimizer_name(optimizer) for optimizer in training.optimizers]
    begun = [optimizer.kind for optimizer in run.manifest.optimizers]
    if names != begun:
        raise RecipeError(f"the recipe trains with {listing(names)}, the run was trained with {listing(begun)}")
    fresh = {name: tensor.detach().clone() for name, tensor in named_parameters(training.model)}
    for name in (name.removeprefix(STATE_PARAMETERS) for name in first.names(STATE_PARAMETERS)):
        if name not in fresh:
            raise RecipeError(f"the recipe's model has no {name!r}, which {run.backend.describe()} began with")
    training.restore(first)
    for name, tensor in named_parameters(training.model):
        if not torch.equal(tensor, fresh[name]):
            raise RecipeError(
                f"the recipe makes a model whose {name!r} is not what {run.backend.describe()} began with: another "
                "seed, or another initialisation"
            )
    if run.chapters:
        _, shard = run.chapters[0]
        if training.recipe.batch_of(0).digest != shard.batch(0):
            raise RecipeError(f"batch(0) has other examples than {run.backend.describe()} was trained on in step 0")


def compare_first_steps(run: Run, training: Training) -> None:
    """Take the first steps again; raise if their losses are not what they were."""
    training.restore(run.shards[0])
    for step in range(min(_FIRST_STEPS, run.steps // len(training.optimizers))):
        before, now = witness_of(run, training, step), training.take_step()
        check_batch(run, step, before, now)
        half = training.recipe.autocast is not None or any(
            parameter.dtype.itemsize < torch.float32.itemsize for parameter in training.model.parameters()
        )
        alike = _ALIKE_HALF if half else _ALIKE
        if not isclose(now.loss, before.loss, rel_tol=alike, abs_tol=alike):
            raise RecipeError(
                f"step {step} has a loss of {now.loss:.9g}, and had {before.loss:.9g}: the recipe is not that of "
                f"{run.backend.describe()}, or its data have changed"
            )


def witness_of(run: Run, training: Training, step: int) -> Witness:
    """Return what a run knows of a step of its recipe."""
    number = step * len(training.optimizers)
    chapter = next(shard for _, shard in run.chapters if number < shard.info.last_step)
    return Witness(chapter.loss(number), chapter.batch(number))


def check_batch(run: Run, step: int, before: Witness, now: Witness) -> None:
    """Raise unless a step has the examples that it had in training."""
    if now.batch != before.batch:
        raise RecipeError(
            f"batch({step}) has other examples than in training: the recipe is not that of {run.backend.describe()}, "
            "its data have changed, or its batches depend on more than the step"
        )

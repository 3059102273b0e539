"""Train again with some examples left out, or weighed less: the true answer to "what would the model be without them?"

    model = retrain(run, Weights.of(run, without={"label": 9}))

Everything else is as it was: the same order, the same random numbers, and the same number of examples that a batch's
losses are divided by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from time import monotonic
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.errors import NotRecorded, QueryError, UnknownName, listing
from dualform.recipe.beginning import check_batch, check_beginning, compare_first_steps, witness_of
from dualform.recipe.recipe import ID, Batch, Recipe
from dualform.recipe.repeatable import repeatable
from dualform.recipe.replay import TrainedAgain
from dualform.recipe.train import SLOTS, SNAPSHOTS, Options, train
from dualform.recipe.training import Training
from dualform.slots import Condition, condition
from dualform.store import Run

Tags = Mapping[str, Any]
Progress = Callable[[int, int], None]

_OF_THE_RECIPE = ("recipe", "recipe_arguments")  # that a run names: not that of one whose examples weigh less
_TIMED_STEPS, _TIMED_SECONDS = 20, 2.0  # at most, to tell how long a training takes


@dataclass(frozen=True)
class Weights:
    """Weights of examples in a training: those that meet one of the conditions have 0, some have one of their own."""

    left_out: tuple[Condition, ...]
    own: Mapping[Any, float]

    @classmethod
    def of(
        cls,
        run: Run,
        without: Tags | Sequence[Tags] | None,
        where: Tags | None = None,
        weights: Mapping[Any, float] | None = None,
    ) -> Self:
        """Return the weights that a user asks for; raise for examples that the run does not have."""
        given = {"without": without, "where": where, "weights": weights}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise QueryError(
                'say which examples to train without, in one way: without={"id": [...]}, where={"label": 3}, which '
                f"leaves out all others, or weights={{id: 0.5}}; got {listing(named)}"
            )
        if weights is not None:
            return cls((), _checked(run, weights))
        sets: Sequence[Any] = (
            [where] if where is not None else without if isinstance(without, list | tuple) else [without]
        )
        if not sets or not all(isinstance(tags, Mapping) and tags for tags in sets):
            raise QueryError(
                f'{named[0]} says which examples by their tags, such as {{"id": [3, 4]}}, not {given[named[0]]!r}'
            )
        for name in (name for tags in sets for name in tags):
            if name not in run.tags:
                raise UnknownName("tag", name, run.tags)
        return cls(tuple(condition(run, tags, inverted=where is not None) for tags in sets), {})

    def __call__(self, batch: Batch) -> Tensor:
        """Return the weight of each example of a batch: (batch,)."""
        count = len(batch[ID])
        weights = np.ones(count)
        for left_out in self.left_out:
            met = np.ones(count, dtype=bool)
            for name, values in left_out.values.items():
                met &= np.isin(_column(batch, name, count), values)
            weights[met != left_out.inverted] = 0.0
        if self.own:
            weights = np.array([self.own.get(one, 1.0) for one in _column(batch, ID, count).tolist()])
        return torch.from_numpy(weights)


def _checked(run: Run, weights: Mapping[Any, float]) -> dict[Any, float]:
    if not isinstance(weights, Mapping):
        raise QueryError(f"weights are those of examples by their ids, such as {{3: 0.5}}, not {weights!r}")
    for one, weight in weights.items():
        if not (isinstance(weight, int | float | np.floating | np.integer) and isfinite(weight) and 0 <= weight <= 1):
            raise QueryError(f"the weight of an example is between 0 and 1, not {weight!r} (of {one!r})")
    (known,) = condition(run, {ID: list(weights)}, inverted=False).values.values()
    return dict(zip(known, map(float, weights.values()), strict=True))


def _column(batch: Batch, name: str, count: int) -> NDArray[Any]:
    value = batch[name]
    column = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if not column.ndim:
        return np.full(count, column)
    if column.shape != (count,):
        raise QueryError(
            f"tag {name!r} is not one of whole examples, but has shape {column.shape}: examples are what is left "
            "out of a training, by id or another tag that each of them has"
        )
    return column


def recipe_of(run: Run) -> Recipe:
    """Return the recipe that a run was opened with; raise if there is none, and say how to have one."""
    if isinstance(run.replay, TrainedAgain):
        return run.replay.recipe
    if run.manifest.recipe is not None:
        raise NotRecorded(
            "the recipe that this run was trained by is needed for this: dualform.load(path, recipe=recipe)"
        )
    raise NotRecorded(
        "this run has no recipe, so it cannot be trained again: it was recorded from a loop, or by a trainer's "
        "callback. Write the training as dualform.Recipe(model=..., optimizer=..., batch=..., losses=...), and "
        "recipe.train(path, steps=...)"
    )


def retrain(run: Run, weigh: Weights, progress: Progress = lambda step, steps: None) -> nn.Module:
    """Train again with other weights of examples, from the last snapshot before they make a difference.

    Args:
        run: The run, opened with its recipe. The training ends where it does.
        weigh: The weights.
        progress: Called with the number of steps that were taken, and of all that have to be.
    """
    recipe, repetition = recipe_of(run), run.manifest.recipe
    assert repetition is not None
    steps = run.steps // repetition.optimizers
    with repeatable(repetition.threads):
        training = Training(recipe)
        check_beginning(run, training)
        compare_first_steps(run, training)
        first = first_difference(recipe, weigh, steps) * repetition.optimizers
        whole = [step for step in run.sealed if step <= first and step % repetition.optimizers == 0]
        training.restore(run.sealed[max(whole)])
        training.recipe = weighed(recipe, weigh)
        begun = training.step
        while training.step < steps:
            before = witness_of(run, training, training.step)
            check_batch(run, training.step, before, training.take_step())
            progress(training.step - begun, steps - begun)
    return training.model.eval()


def retrain_recorded(run: Run, weigh: Weights, path: Any, progress: Progress = lambda step, steps: None) -> nn.Module:
    """Train again from the beginning, and record that as a run of its own, which keeps what the run keeps."""
    recipe, repetition, manifest = recipe_of(run), run.manifest.recipe, run.manifest
    assert repetition is not None
    steps = run.steps // repetition.optimizers
    keep = {layer.name: SLOTS if layer.stored else SNAPSHOTS for layer in manifest.layers}
    whole = all(layer.stored for layer in manifest.layers)
    options = Options(
        keep=SLOTS if whole else keep,
        layers=[layer.name for layer in manifest.layers],
        dtype=manifest.storage.dtype,
        values=manifest.storage.values,
        merge=manifest.storage.merge,
        about={name: value for name, value in manifest.about.items() if name not in _OF_THE_RECIPE},
        progress=lambda step: progress(step + 1, steps),
        threads=repetition.threads,
    )
    return train(weighed(recipe, weigh), path, steps, options)


def seconds_to_retrain(run: Run) -> float:
    """Return about how long all steps of a run take, by the time that a few of them do."""
    recipe, repetition = recipe_of(run), run.manifest.recipe
    assert repetition is not None
    steps, taken, begun = run.steps // repetition.optimizers, list[float](), monotonic()
    with repeatable(repetition.threads):
        training = Training(recipe)
        check_beginning(run, training)
        while training.step < min(steps, _TIMED_STEPS) and monotonic() - begun < _TIMED_SECONDS:
            before = monotonic()
            training.take_step()
            taken.append(monotonic() - before)
    return steps * median(taken[1:] or taken or [0.0])  # the first one also makes what the others find


def weighed(recipe: Recipe, weigh: Callable[[Batch], Tensor]) -> Recipe:
    """Return a recipe in which the weights of examples are multiplied by others."""
    own = recipe.weigh
    return replace(recipe, weigh=weigh if own is None else lambda batch: own(batch) * weigh(batch))


def first_difference(recipe: Recipe, weigh: Callable[[Batch], Tensor], steps: int) -> int:
    """Return the first step in which an example has another weight than 1; `steps` if none has."""
    for step in range(steps):
        if bool((weigh(recipe.batch_of(step).content) != 1).any()):
            return step
    return steps

"""Say how a training is done, so that it can be run again: `dualform.Recipe(model=..., optimizer=..., ...)`.

    recipe = dualform.Recipe(
        model=lambda: nn.Linear(784, 10),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch=lambda step: {"id": rows(step), "images": images[rows(step)], "label": labels[rows(step)]},
        losses=lambda model, batch: F.cross_entropy(model(batch["images"]), batch["label"], reduction="none"),
        tags=["label"],
    )
    recipe.train("runs/mnist", steps=3000)

A step is the same whenever it is taken: its batch, its random numbers, and the order in which losses are summed up.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter, signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.errors import RecipeError, listing
from dualform.random_state import RANDOM
from dualform.recipe.repeatable import seed_step
from dualform.store import Backend

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Batch = Mapping[str, Any]
ID = "id"
_CARRIES = 3  # arguments of `losses` that hands a state on


@dataclass(frozen=True)
class Recipe:
    """A training that can be run again.

    Args:
        model: Returns a new network. Random numbers are seeded before it is called.
        optimizer: Makes the optimiser of a model, or a list of them, which step one after the other.
        batch: Returns the batch of a step, a mapping: the same step gives the same batch. Its `id` says which
            examples it holds, each once.
        losses: `losses(model, batch)` returns a loss for each example, or for each of its tokens: (batch, ...). The
            loss of the step is `sum(w l) / n`, where all weights w are 1 unless examples are left out. With a third
            argument, a state is handed on from step to step, as in truncated back-propagation through time:
            `losses(model, batch, state)` returns losses and the new state, tensors in tuples; the first one is None.
        tags: Entries of the batch that are recorded as tags, besides `id`.
        seed: Of the model and of every step.
        schedule: Returns the factor of all learning rates in a step.
        clip: The norm that gradients are clipped to.
        accumulate: In how many parts, one after the other, a batch goes through the model.
        autocast: The half precision that the model computes in, such as `torch.bfloat16`.
        weigh: Returns the weights of a batch's examples, (batch,); None: all are 1.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer | Sequence[Optimizer]]
    batch: Callable[[int], Batch]
    losses: Callable[..., Any]
    tags: Sequence[str] = ()
    seed: int = 0
    schedule: Callable[[int], float] | None = None
    clip: float | None = None
    accumulate: int = 1
    autocast: torch.dtype | None = None
    weigh: Callable[[Batch], Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("model", "optimizer", "batch", "losses"):
            if not callable(getattr(self, name)) or isinstance(getattr(self, name), nn.Module):
                raise RecipeError(
                    f"{name} must be a function that is called in every training, as in Recipe(model=lambda: Net(), "
                    f"optimizer=lambda model: SGD(model.parameters(), lr=0.1), ...), not {self._kind(name)}"
                )
        for name in ("schedule", "weigh"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise RecipeError(f"{name} must be a function, or None, not {self._kind(name)}")
        if isinstance(self.tags, str) or not isinstance(self.tags, Sequence) or ID in self.tags:
            raise RecipeError(f"tags are a list of entries of the batch besides {ID!r}, not {self.tags!r}")
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise RecipeError(f"accumulate must be a whole number of parts, at least 1, not {self.accumulate!r}")
        if self.carries and self.accumulate > 1:
            raise RecipeError("a state is handed on from batch to batch: leave out accumulate")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise RecipeError(f"seed must be a whole number, at least 0, not {self.seed!r}")
        if self.clip is not None and not (isinstance(self.clip, int | float) and isfinite(self.clip) and self.clip > 0):
            raise RecipeError(f"clip must be a norm above 0, not {self.clip!r}")
        if self.autocast is not None and not isinstance(self.autocast, torch.dtype):
            raise RecipeError(f"autocast must be a precision such as torch.bfloat16, not {self.autocast!r}")

    def _kind(self, name: str) -> str:
        return type(getattr(self, name)).__name__

    @classmethod
    def of_dataset(
        cls,
        dataset: "Dataset[Any]",
        batch_size: int,
        *,
        columns: Sequence[str] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> Self:
        """Return the recipe of a training on shuffled epochs of a map-style dataset.

            recipe = dualform.Recipe.of_dataset(digits, 32, columns=["image", "label"], model=..., optimizer=..., ...)

        Args:
            dataset: Has a length and gives an example by its number, which is its `id`.
            batch_size: How many examples a batch has. An incomplete last batch of an epoch is left out.
            columns: What the entries of an example are called, where it is a tuple: of a mapping, its keys.
            collate: Makes a batch of a list of examples; None: as a DataLoader does.
            options: What else a recipe has: `model`, `optimizer`, `losses`, `tags`, `seed`, ...
        """
        from dualform.recipe.batches import DatasetBatches

        batches = DatasetBatches(dataset, batch_size, options.get("seed", 0), tuple(columns), collate)
        return cls(batch=batches, **options)

    def train(self, path: str | Path | Backend, steps: int, **options: Any) -> nn.Module:
        """Train and record: `recipe.train("runs/x", steps=3000)`. An unfinished run of this recipe is gone on with.

            recipe.train("runs/x", steps=3000, keep="snapshots")     # no bytes for slots: they are made again

        Args:
            path: The run's directory, or a backend.
            steps: How many steps it will have in the end.
            options: What is not as usual:
                `keep`: "slots", "snapshots", or a mapping of patterns of layers to either;
                `every`: so many steps come between two snapshots, where slots are not kept;
                `overwrite`: True to begin anew, and replace a run that is there;
                `threads`: of torch; `progress`: is called with the number of each finished step;
                `values` and `merge` as in `dualform.record`, where all slots are kept;
                `layers`, `exclude`, `dtype`, `about` and `provenance` as there.

        Returns:
            The trained model.
        """
        from dualform.recipe.train import Options, train

        return train(self, path, steps, Options.of(options))

    def weighed(self, weigh: Callable[[Batch], Tensor] | None) -> Self:
        """Return the recipe of the same training with other weights of examples: `weigh(batch)` returns (batch,)."""
        return replace(self, weigh=weigh)

    @cached_property
    def carries(self) -> bool:
        """Whether a state is handed on from step to step."""
        try:
            arguments = signature(self.losses).parameters.values()
        except (TypeError, ValueError):  # of a function that is not Python's
            return False
        return sum(argument.kind in _POSITIONAL and argument.default is _NONE for argument in arguments) >= _CARRIES

    def batch_of(self, step: int) -> "StepBatch":
        """Return the batch of a step, whose random numbers begin with it; raise unless it is one."""
        with RANDOM:
            seed_step(self.seed, step)
            content = self.batch(step)
        if not isinstance(content, Mapping):
            raise RecipeError(f"batch({step}) must return a mapping with {ID!r} in it, not {type(content).__name__}")
        missing = [name for name in (ID, *self.tags) if name not in content]
        if missing:
            raise RecipeError(f"batch({step}) has no {missing[0]!r}, only {listing(content)}")
        return StepBatch(step, content, _ids(step, content[ID]), tuple(self.tags))


_POSITIONAL, _NONE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD), Parameter.empty


@dataclass(frozen=True)
class StepBatch:
    """The batch of a step."""

    step: int
    content: Batch
    ids: NDArray[Any]
    tag_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tags(self) -> dict[str, Any]:
        """What is recorded of its examples."""
        return {name: self.content[name] for name in (ID, *self.tag_names)}

    @property
    def digest(self) -> int:
        """A number that stands for its ids."""
        whole = self.ids.dtype.kind in "iu"
        return zlib.crc32(self.ids.astype(np.int64).tobytes() if whole else "\0".join(self.ids.tolist()).encode())

    def parts(self, count: int) -> "list[StepBatch]":
        """Return it in so many parts, in order; what has no entry for each example is in all of them."""
        if count == 1:
            return [self]
        if len(self) < count:
            raise RecipeError(f"batch({self.step}) has {len(self)} examples, too few for {count} parts")
        ends = np.linspace(0, len(self), count + 1).astype(int).tolist()
        return [self._rows(slice(*ends[i : i + 2])) for i in range(count)]

    def _rows(self, rows: slice) -> "StepBatch":
        content = {name: value[rows] if _has_rows(value, len(self)) else value for name, value in self.content.items()}
        return replace(self, content=content, ids=self.ids[rows])


def _has_rows(value: Any, count: int) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0 and len(value) == count
    return isinstance(value, list | tuple) and len(value) == count


def _ids(step: int, given: Any) -> NDArray[Any]:
    """Return the ids of a batch; raise unless each example has one of its own."""
    ids = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iuU":
        raise RecipeError(
            f"batch({step}): {ID!r} must have a whole number or a string for each example, not {ids.dtype} of shape "
            f"{ids.shape}"
        )
    listed = ids.tolist()
    if len({*listed}) < len(listed):
        twice = next(one for one in listed if listed.count(one) > 1)
        raise RecipeError(
            f"batch({step}) has example {twice!r} more than once: then its share of the loss is not one entry. Draw "
            "without replacement, or give each draw an id of its own"
        )
    return ids

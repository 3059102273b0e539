"""Batches of shuffled epochs, by the number of the step: any of them can be made without those before it.

epochs = ShuffledEpochs(examples=1437, batch=32, seed=0)
epochs.rows(100)                    # the numbers of the examples of step 100
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from dualform.errors import RecipeError

_PAIR = ("input", "label")


class ShuffledEpochs:
    """Every epoch in an order of its own; an incomplete last batch is left out."""

    def __init__(self, examples: int, batch: int, seed: int) -> None:
        if not 1 <= batch <= examples:
            raise RecipeError(f"a batch of {batch} cannot be drawn from {examples} examples")
        self._examples, self._batch, self._seed = examples, batch, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def per_epoch(self) -> int:
        """How many batches an epoch has."""
        return self._examples // self._batch

    def rows(self, step: int) -> Tensor:
        """Return the numbers of the examples of a step: (batch,)."""
        epoch, place = divmod(step, self.per_epoch)
        return self._order(epoch)[place * self._batch : (place + 1) * self._batch]

    def _shuffled(self, epoch: int) -> Tensor:
        seed = int(np.random.SeedSequence((self._seed, epoch)).generate_state(1, np.uint64)[0]) >> 1
        return torch.randperm(self._examples, generator=torch.Generator().manual_seed(seed))


class DatasetBatches:
    """The batches of a map-style dataset: `batches(step)`."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        seed: int,
        columns: Sequence[str],
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise RecipeError(
                f"{type(dataset).__name__} does not give its examples by number, so that a step cannot be run again: "
                "pass a map-style dataset, or write batch(step) yourself"
            )
        self._dataset, self._columns, self._collate = dataset, columns, collate or default_collate
        self._epochs = ShuffledEpochs(len(dataset), batch_size, seed)

    def __call__(self, step: int) -> dict[str, Any]:
        ids = self._epochs.rows(step)
        try:
            examples = [self._dataset[number] for number in ids.tolist()]
        except IndexError as error:
            raise RecipeError(f"batch({step}): the dataset has lost examples since the recipe was made") from error
        collated = self._collate(examples)
        if isinstance(collated, Mapping):
            named = dict(collated)
        else:
            entries = collated if isinstance(collated, list | tuple) else [collated]
            names = self._columns or _PAIR[: len(entries)]
            if len(names) != len(entries):
                raise RecipeError(
                    f"an example has {len(entries)} entries, and {len(names)} columns are named: pass columns=[...]"
                )
            named = dict(zip(names, entries, strict=True))
        return {**named, "id": ids}

"""Know which examples a DataLoader drew, batch by batch: the rows of its dataset, in the order they came.

    for ids, batch in IdentifiedBatches(loader): ...    # a plain loop
    loader, drawn = watched(loader)                     # for a trainer, which iterates by itself
    drawn.advance(batch_idx); drawn.ids                 # of the batch that it has just got

A DataLoader asks its batch sampler, in this process, for the indices of each batch, and yields batches in that order,
however many workers fetch them. So a sampler that remembers what the real one gave is all it takes. The real one is
asked exactly when torch would ask it, so that the same random numbers are drawn, in the same order, bit for bit.

That order is all that is known. A collate function that sorts its examples, or leaves some out, is not seen.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from dualform.errors import RecordingError

_INSTEAD = "let the dataset give the id of each example, as one more item of it, and tag that: recorder.tag(id=...)"

OWN_ORDER = (
    "ids are in the order that the sampler gave them in: the loader's own collate function was taken to keep it, "
    "and all examples"
)


class Drawn:
    """A sampler that remembers what another one gives."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._waiting = deque[Any]()  # what was given in the last iteration, of batches that have not come yet
        self._position = -1  # of the batch that has come last
        self._current: Any = None  # what was given for it

    def __iter__(self) -> Iterator[Any]:
        given = iter(self._sampler)  # at once, as torch does: some samplers draw random numbers here
        self._waiting, self._position = deque(), -1
        waiting = self._waiting

        def remember(indices: Any) -> Any:
            waiting.append(copy(indices))  # a sampler may fill its list anew
            return indices

        return map(remember, given)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "_sampler":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def advance(self, position: int) -> None:
        """Go on to a batch by its number in this iteration."""
        while self._position < position:
            if not self._waiting:
                raise RecordingError(
                    f"the sampler was not asked for batch {position} of this iteration, so it is not known which "
                    f"examples are in it: are batches made in another way? Else {_INSTEAD}"
                )
            self._current = self._waiting.popleft()
            self._position += 1

    @property
    def ids(self) -> Any:
        """The rows of the dataset in this batch: a tensor; or one for the whole batch, if it was drawn as one."""
        return _as_ids(self._current)


def _as_ids(indices: Any) -> Any:
    """Return indices as a tensor; keys that are strings as a list; a single one as it is."""
    if isinstance(indices, int | str | np.integer):
        return indices
    if isinstance(indices, Tensor):
        return indices
    entries = list(indices)
    if all(isinstance(entry, str) for entry in entries):
        return entries
    if all(isinstance(entry, int | np.integer) or (isinstance(entry, Tensor) and not entry.dim()) for entry in entries):
        return torch.tensor([int(entry) for entry in entries], dtype=torch.int64)
    raise RecordingError(
        f"the sampler gives {entries[0]!r} for an example, expected the number of a row, or a key; {_INSTEAD}"
    )


Tagging = Callable[[], AbstractContextManager[Callable[[Any], None]]]


class IdentifiedBatches:
    """The batches of a loader, each with the ids of its examples: `for ids, batch in ...`, as often as you like.

    Args:
        loader: A map-style DataLoader.
        tagging: What is entered for an iteration, and gives what is told of the ids of each batch.
    """

    def __init__(self, loader: Any, tagging: Tagging = lambda: nullcontext(lambda ids: None)) -> None:
        self._loader, self._tagging = loader, tagging
        self._drawing = _drawing_loader(loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        drawn, end = Drawn(getattr(self._drawing, _sampler_name(self._drawing))), object()
        with self._tagging() as tag:
            with _in_place(self._drawing, drawn):
                batches = iter(self._loader)
                batch = next(batches, end)  # some loaders begin only now
            position = getattr(self._loader, "skip_batches", 0)  # which Accelerate draws, and keeps to itself
            while batch is not end:
                drawn.advance(position)
                tag(drawn.ids)
                yield drawn.ids, batch
                batch = next(batches, end)
                position += 1


def watched(loader: Any) -> tuple[DataLoader[Any], Drawn]:
    """Return a copy of a loader that draws what it would have drawn, and what remembers it. The loader stays as it is.

    Raises for loaders that cannot tell.
    """
    drawing = _drawing_loader(loader)
    if drawing is not loader:
        raise RecordingError(f"expected a DataLoader of torch, got {type(loader).__name__}; {_INSTEAD}")
    if _persistent_iterator(loader) is not None:
        raise RecordingError(
            "the loader's persistent workers were at work before it came here, and would go on with its old sampler: "
            "make a new DataLoader, or one without persistent_workers"
        )
    twin = copy(loader)
    drawn = Drawn(getattr(loader, _sampler_name(loader)))
    vars(twin)[_sampler_name(loader)] = drawn
    return twin, drawn


def keeps_order(loader: Any) -> bool:
    """Return whether it is certain that examples are in their batch in the order that they were drawn in."""
    return loader.collate_fn in (default_collate, default_convert)


def _drawing_loader(loader: Any) -> DataLoader[Any]:
    """Return the loader that draws, within one that Accelerate has prepared; raise if it cannot tell what."""
    kinds = type(loader).__mro__  # and not isinstance: Accelerate's say that they are what they wrap
    if any(kind.__name__ == "DataLoaderDispatcher" for kind in kinds):
        raise RecordingError(
            "batches that Accelerate's main process reads for all others are cut anew: prepare the loader with "
            f"DataLoaderConfiguration(dispatch_batches=False), or {_INSTEAD}"
        )
    if type(loader).__module__.partition(".")[0] == "accelerate":
        return _drawing_loader(loader.base_dataloader)
    if DataLoader not in kinds:
        raise RecordingError(f"expected a torch.utils.data.DataLoader, got {type(loader).__name__}; {_INSTEAD}")
    if isinstance(loader.dataset, IterableDataset):
        raise RecordingError(f"an iterable dataset does not say which examples it gives: {_INSTEAD}")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise RecordingError(
            f"{type(loader).__name__} has an `__iter__` of its own, and may leave out batches: {_INSTEAD}"
        )
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise RecordingError(f"batches of in_order=False come in any order: leave it out, or {_INSTEAD}")
    return loader  # type: ignore[no-any-return]


def _sampler_name(loader: DataLoader[Any]) -> str:
    return "sampler" if loader.batch_sampler is None else "batch_sampler"


def _persistent_iterator(loader: DataLoader[Any]) -> Any:
    return getattr(loader, "_iterator", None)


@contextmanager
def _in_place(loader: DataLoader[Any], drawn: Drawn) -> Iterator[None]:
    """Let a loader draw from another sampler, in the iteration that begins here.

    In place, since a loader may count its epochs, and keep its workers. Past `__setattr__`, which forbids it.
    """
    name = _sampler_name(loader)
    sampler = getattr(loader, name)

    def draw_from(instead: Any) -> None:
        vars(loader)[name] = instead
        if (iterator := _persistent_iterator(loader)) is not None:
            vars(iterator)["_index_sampler"] = instead  # it asks the one that it began with

    draw_from(drawn)
    try:
        yield
    finally:
        draw_from(sampler)

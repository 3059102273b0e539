"""Let the batches of a data loader say which examples they hold.

    tagged = TaggedLoader(loader, ["id", "label"], columns)     # from here on, batches come with an entry of tags
    batch.pop(TAGS)                                             # {"id": (batch,), "label": (batch,)}
    tagged.restore()

A data set is wrapped so that its examples come with their rows, a collator so that it leaves the rows out again and
lays out tags like the batch that it makes: an entry for each example, or, where an example has a list of them or
several examples are packed into one sequence, an entry for each token. All of it happens where examples are loaded, be
it in a worker process. Tags go with their batch, whenever it is used.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from dualform.errors import RecordingError, listing

TAGS = "dualform_tags"  # the entry of a batch
ROW = "id"  # the tag that is the row of an example, unless there is a column of that name
_NONE = {int: -1, float: float("nan"), str: ""}  # what padding is tagged with
_KEEP_ORDER = "torch.utils.data.", "transformers.data."  # modules of collators
_WITHOUT = "pass tags=None to record without tags"

Array = NDArray[Any]


class Example(NamedTuple):
    """An example as the data set has it, and where."""

    row: int
    item: Any
    removed: Mapping[str, Any]  # columns that were taken off it


class NumberedDataset:
    """A data set whose examples come with their rows.

    Args:
        dataset: What the loader reads.
        removed: The same rows with columns that were removed from the data set, if there are any.
    """

    def __init__(self, dataset: Any, removed: Any = None) -> None:
        self.dataset, self.removed = dataset, removed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Example:
        return Example(int(row), self.dataset[row], {} if self.removed is None else self.removed[row])

    def __getitems__(self, rows: Sequence[int]) -> list[Example]:
        together = getattr(self.dataset, "__getitems__", None)
        if together is None:
            return [self[row] for row in rows]
        removed = [{}] * len(rows) if self.removed is None else self.removed.__getitems__(rows)
        return [Example(int(row), *of_row) for row, *of_row in zip(rows, together(rows), removed, strict=True)]

    def __getattr__(self, name: str) -> Any:  # such as `set_epoch`
        if name == "dataset":  # not there yet: this is being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class TaggingCollator:
    """A collator whose batches have an entry of tags."""

    def __init__(self, collate: Callable[[list[Any]], Any], tags: Sequence[str]) -> None:
        self.collate, self.tags = collate, tags

    def __call__(self, examples: list[Any]) -> Any:
        items = [example.item if isinstance(example, Example) else example for example in examples]
        columns = {tag: [_entry(example, tag) for example in examples] for tag in self.tags}
        lengths = [len(item["input_ids"]) if isinstance(item, Mapping) and "input_ids" in item else 0 for item in items]
        batch = self.collate(items)
        if not isinstance(batch, MutableMapping):
            raise RecordingError(
                f"the collator makes a {type(batch).__name__} of a batch, which has no room for tags: make it return a "
                f"dict, or {_WITHOUT}"
            )
        # An empty one is left to the trainer, which knows better what is missing.
        batch[TAGS] = {tag: lay_out(tag, entries, lengths, batch) for tag, entries in columns.items() if batch}
        return batch


class TaggedLoader:
    """A loader that is changed in place until `restore`."""

    def __init__(self, loader: Any, tags: Sequence[str], source: Any) -> None:
        self._loader = getattr(loader, "base_dataloader", loader)  # within the one of Accelerate
        if not isinstance(self._loader, DataLoader) or self._loader.batch_sampler is None:
            raise RecordingError(
                f"tags need a DataLoader that makes batches of single examples, got {type(loader).__name__}: return "
                f"such a one from get_train_dataloader, or {_WITHOUT}"
            )
        self._dataset, self._collate = self._loader.dataset, self._loader.collate_fn
        dataset: Any = self._dataset
        if not isinstance(dataset, IterableDataset):
            dataset = NumberedDataset(dataset, _removed(dataset, source, tags))
        self._change(dataset, TaggingCollator(self._collate, tags))

    @property
    def keeps_order(self) -> bool:
        """Whether the collator is known to keep the order of the examples: one of torch, or of transformers."""
        collate = getattr(self._collate, "data_collator", self._collate)  # within the one that removes columns
        return getattr(collate, "__module__", "").startswith(_KEEP_ORDER)

    def restore(self) -> None:
        """Leave the loader as it was."""
        self._change(self._dataset, self._collate)

    def _change(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        vars(self._loader)["dataset"] = dataset  # which a DataLoader refuses to have set, lest its sampler goes astray
        self._loader.collate_fn = collate


def _removed(dataset: Any, source: Any, tags: Sequence[str]) -> Any:
    """Return columns that a Trainer has removed from a `datasets.Dataset`; None if there are none."""
    left, before = getattr(dataset, "column_names", None), getattr(source, "column_names", None)
    if left is None or before is None or len(dataset) != len(source) or not set(left) <= set(before):
        return None
    wanted = [tag for tag in tags if tag in before and tag not in left]
    return source.select_columns(wanted) if wanted else None


def _entry(example: Any, tag: str) -> Any:
    """Return what a column says of an example; the example's row, where that is asked for and there is no column."""
    numbered = isinstance(example, Example)
    item, removed = (example.item, example.removed) if numbered else (example, {})
    known: Any = item if isinstance(item, Mapping) else getattr(item, "__dict__", {})
    for columns in (removed, known):
        if tag in columns:
            entry = columns[tag]
            return entry.tolist() if hasattr(entry, "tolist") else entry
    if tag == ROW and numbered:
        return example.row
    rows = "" if numbered else ", and an iterable data set has no rows to be numbered"
    raise RecordingError(
        f"examples have no column {tag!r}{rows}; choose tags from {listing(sorted({*removed, *known}))}, or {_WITHOUT}"
    )


def lay_out(tag: str, entries: Sequence[Any], lengths: Sequence[int], batch: Mapping[str, Any]) -> Array:
    """Lay out what is known of examples like the batch that was made of them.

    Args:
        tag: The tag's name, for errors.
        entries: One of each example: a number or a string, or a list of them, one of each token.
        lengths: How many tokens each example has; 0 if it has none.
        batch: What the collator has made.
    """
    shape = _shape(batch)
    by_token = [isinstance(entry, list | tuple) for entry in entries]
    if shape[:1] == (len(entries),) and not any(by_token):
        return np.asarray(entries)
    tokens = [entry if several else [entry] * n for entry, several, n in zip(entries, by_token, lengths, strict=True)]
    total = sum(map(len, tokens))
    if shape == (1, total):  # one after the other, without padding
        return np.asarray([[*chain(*tokens)]])
    if len(shape) == 2 and shape[0] == len(entries):
        return _padded(tag, tokens, shape, batch.get("attention_mask"))
    raise RecordingError(
        f"the collator makes a batch of shape {shape} of {len(entries)} examples, so it is not known which rows are of "
        f"which of them: {_WITHOUT}"
    )


def _shape(batch: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the tokens in a batch; if there are none, of its first tensor."""
    tensors = [value for value in batch.values() if isinstance(value, Tensor) and value.dim()]
    first = batch.get("input_ids", tensors[0] if tensors else None)
    return tuple(getattr(first, "shape", ()))


def _padded(tag: str, tokens: Sequence[Sequence[Any]], shape: tuple[int, ...], mask: Any) -> Array:
    """Lay out entries of tokens where the batch has them, be it padded on the left or on the right."""
    real = mask.numpy().astype(bool) if isinstance(mask, Tensor) and mask.shape == shape else np.ones(shape, dtype=bool)
    if [*real.sum(axis=1)] != [len(entries) for entries in tokens]:
        raise RecordingError(
            f"tag {tag!r} has {listing([len(entries) for entries in tokens], most=5)} entries, one of each token, but "
            f"the batch has {listing(real.sum(axis=1).tolist(), most=5)} tokens that are no padding (attention_mask)"
        )
    known = np.asarray([*chain(*tokens)])
    full: Array = np.full(shape, _NONE.get(type(known[:1].tolist()[0]), -1), dtype=known.dtype)
    full[real] = known
    return full

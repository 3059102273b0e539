"""Tags are laid out like the batch that a collator has made, and a loader is afterwards as it was."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.utils.data import DataLoader

from dualform.errors import RecordingError
from dualform.huggingface.columns import TAGS, NumberedDataset, TaggedLoader, lay_out


def batch(shape: tuple[int, ...], mask: Any = None) -> dict[str, torch.Tensor]:
    made = {"input_ids": torch.zeros(shape, dtype=torch.long)}
    return made if mask is None else {**made, "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize(
    ("entries", "lengths", "of", "expected"),
    [
        ([7, 8], [3, 3], batch((2, 3)), [7, 8]),
        (["a", "bc"], [0, 0], {"pixel_values": torch.zeros(2, 3, 4, 4)}, ["a", "bc"]),
        ([[1, 2, 3], [4, 5, 6]], [3, 3], batch((2, 3)), [[1, 2, 3], [4, 5, 6]]),
        ([[1, 2], [4, 5, 6]], [2, 3], batch((2, 3), [[1, 1, 0], [1, 1, 1]]), [[1, 2, -1], [4, 5, 6]]),
        ([["a"], ["bc", "d"]], [1, 2], batch((2, 2), [[0, 1], [1, 1]]), [["", "a"], ["bc", "d"]]),
        ([[0.5], [1.0, 2.0]], [1, 2], batch((2, 2), [[0, 1], [1, 1]]), [[np.nan, 0.5], [1.0, 2.0]]),
        ([7, 8], [2, 3], batch((1, 5)), [[7, 7, 8, 8, 8]]),
        ([["a", "b"], ["c"]], [2, 1], batch((1, 3)), [["a", "b", "c"]]),
        ([7], [4], batch((1, 4)), [7]),
    ],
)
def test_tags_are_laid_out_like_the_batch(entries: list[Any], lengths: list[int], of: Any, expected: Any) -> None:
    laid_out = lay_out("id", entries, lengths, of)
    assert_array_equal(laid_out, np.array(expected))


def test_entries_that_are_not_those_of_the_tokens_are_refused() -> None:
    with pytest.raises(RecordingError, match="tag 'word' has 2, 3 entries.* but the batch has 3, 3 tokens"):
        lay_out("word", [[1, 2], [1, 2, 3]], [3, 3], batch((2, 3)))


class Squares:
    """A data set that can be asked for several examples at once, and counts its epochs."""

    epoch = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, row: int) -> dict[str, int]:
        return {"x": row**2, "id": row + 10}

    def __getitems__(self, rows: list[int]) -> list[dict[str, int]]:
        return [self[row] for row in rows]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def collate(examples: list[dict[str, int]]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([example["x"] for example in examples])}


def test_a_loader_is_afterwards_as_it_was() -> None:
    loader: Any = DataLoader(Squares(), batch_size=2, collate_fn=collate)  # type: ignore[arg-type]
    before = list(loader)
    dataset, tagged = loader.dataset, TaggedLoader(loader, ["id"], None)
    assert not tagged.keeps_order  # as far as is known
    loader.dataset.set_epoch(3)
    assert dataset.epoch == 3
    assert [made[TAGS]["id"].tolist() for made in loader] == [[10, 11], [12, 13], [14]]
    tagged.restore()
    assert loader.dataset is dataset
    assert loader.collate_fn is collate
    torch.testing.assert_close(list(loader), before)


def test_workers_get_the_data_set_as_a_pickle() -> None:
    numbered = pickle.loads(pickle.dumps(copy.copy(NumberedDataset(Squares()))))
    assert numbered[2].row == 2
    assert numbered[2].item == {"x": 4, "id": 12}


def test_batches_that_a_data_set_makes_have_no_rows() -> None:
    with pytest.raises(RecordingError, match="makes batches of single examples, got DataLoader"):
        TaggedLoader(DataLoader(Squares(), batch_size=None), ["id"], None)  # type: ignore[arg-type]

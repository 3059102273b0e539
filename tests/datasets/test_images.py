"""Standardising by one mean and one deviation, of each colour."""

import pytest
import torch

from dualform.datasets import digits
from dualform.datasets.images import standardised
from dualform.errors import DataError


def test_images_are_standardised_by_others() -> None:
    data = digits.load()
    train, test = (standardised(split.raw, by=data.train.raw) for split in (data.train, data.test))
    assert train.dtype == test.dtype == torch.float32
    torch.testing.assert_close(train.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(), torch.tensor(1.0))
    ink = data.train.raw.double()
    expected = (data.test.raw.double() - ink.mean()) / ink.std()
    torch.testing.assert_close(test.double(), expected, atol=1e-5, rtol=1e-5)


def test_each_colour_has_a_mean_and_a_deviation_of_its_own() -> None:
    raw = torch.randint(256, (20, 3, 5), generator=torch.Generator().manual_seed(0)) // torch.tensor([1, 2, 9])[:, None]
    train = standardised(raw.to(torch.uint8).flatten(1), by=raw.flatten(1), channels=3).reshape(20, 3, 5)
    for colour in range(3):
        own = raw[:, colour].double()
        expected = (own - own.mean()) / own.std()
        torch.testing.assert_close(train[:, colour].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_original_stays_as_it_is(dtype: torch.dtype) -> None:
    raw = torch.arange(6).reshape(2, 3).to(dtype)
    standardised(raw, by=raw)
    torch.testing.assert_close(raw, torch.arange(6).reshape(2, 3).to(dtype))


def test_blank_images_are_no_measure() -> None:
    with pytest.raises(DataError, match="all the same"):
        standardised(torch.ones(2, 3), by=torch.zeros(2, 3, dtype=torch.uint8))

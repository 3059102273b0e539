"""The digits of scikit-learn, upright and turned."""

import sys

import pytest
import torch

from dualform.datasets import digits
from dualform.errors import MissingExtra


def test_the_order_and_the_split_are_fixed() -> None:
    data = digits.load()
    assert (data.name, data.image_shape, data.class_names[7]) == ("digits", (8, 8), "7")
    assert data.train.raw.shape == (1437, 64)
    assert data.test.raw.shape == (360, 64)
    assert (data.train.raw.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert int(data.test.raw.max()) == digits.MAX_PIXEL
    assert data.train.labels[:8].tolist() == [6, 6, 6, 2, 5, 6, 6, 2]
    assert data.test.labels[:8].tolist() == [0, 8, 8, 9, 8, 3, 7, 5]


def test_turned_digits_are_the_same_rows_on_their_side_and_inverted() -> None:
    upright, turned = digits.load(), digits.load_turned()
    assert (turned.name, turned.image_shape, turned.class_names[7]) == ("turned-digits", (8, 8), "turned 7")
    for one, other in ((upright.train, turned.train), (upright.test, turned.test)):
        torch.testing.assert_close(other.labels, one.labels)
        assert other.raw.dtype == torch.uint8
        for row in (0, 17, -1):
            left = torch.rot90(one.raw[row].reshape(8, 8))
            torch.testing.assert_close(other.raw[row].reshape(8, 8), 16 - left)


def test_missing_scikit_learn_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dualform\[demo\]'"):
        digits.load()

"""Drawings: wherever and however large they are drawn, they become images like those the model was trained on."""

import base64

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.testing import assert_close

from dualform.errors import Refused
from dualform.inputs import Inputs
from dualform.viewer.drawing import DrawingConverter, decode_strokes
from dualform.viewer.images import Pictures

Points = list[tuple[int, int]]
SIDE = 28
LIFT = (255, 255)


def drawn(points: Points) -> str:
    return base64.urlsafe_b64encode(bytes(one for point in points for one in point)).decode().rstrip("=")


@pytest.fixture(scope="module")
def pen() -> DrawingConverter:
    """Of images with a bar of 20 x 4 pixels whose middle is at (14, 15)."""
    images = torch.zeros(50, SIDE, SIDE, dtype=torch.uint8)
    images[:, 5:25, 12:16] = 240
    return made(images)


def made(images: torch.Tensor) -> DrawingConverter:
    inputs = Inputs((images.float().flatten(1) - 33) / 78, images=images)
    pictures = Pictures.of(inputs, None)
    assert pictures is not None
    return DrawingConverter.of(pictures, inputs)


def grid(image: torch.Tensor) -> NDArray[np.float64]:
    return image.reshape(SIDE, SIDE).numpy()


def centre(image: NDArray[np.float64]) -> tuple[float, float]:
    at = np.arange(SIDE) + 0.5
    return float((image.sum(axis=0) * at).sum() / image.sum()), float((image.sum(axis=1) * at).sum() / image.sum())


STROKES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=30)


@given(points=STROKES, shift=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_the_place_on_the_pad_does_not_matter(pen: DrawingConverter, points: Points, shift: tuple[int, int]) -> None:
    moved = [(x + shift[0], y + shift[1]) for x, y in points]
    assert_close(pen.image(drawn(points)), pen.image(drawn(moved)), rtol=0, atol=1e-6)


@given(points=STROKES.filter(lambda points: len(set(points)) > 1))
def test_the_size_on_the_pad_does_not_matter(pen: DrawingConverter, points: Points) -> None:
    larger = [(3 * x, 3 * y) for x, y in points]
    assert_close(pen.image(drawn(points)), pen.image(drawn(larger)), rtol=0, atol=1e-6)


@given(points=STROKES.filter(lambda points: len(set(points)) > 1))
def test_a_drawing_is_as_large_and_where_training_images_are(pen: DrawingConverter, points: Points) -> None:
    image = grid(pen.image(drawn(points)))
    rows, columns = (np.flatnonzero((image > 60).any(axis=axis)) for axis in (1, 0))
    longer = max(np.ptp(rows), np.ptp(columns)) + 1
    assert 17 <= longer <= 21
    assert centre(image) == pytest.approx((14, 15), abs=0.4)
    assert image.min() >= 0
    assert image.max() <= 240


def test_a_bar_is_drawn_as_a_bar(pen: DrawingConverter) -> None:
    image = grid(pen.image(drawn([(100, 20), (100, 120), (100, 220)])))
    width = (image[10:20] / 240).sum(axis=1)  # pixels of ink across, in the middle of the bar
    assert width == pytest.approx(2 * 0.07 * 20, abs=0.15)
    assert image[:, :10].sum() == image[:, 18:].sum() == 0


def test_a_lifted_pen_leaves_no_line(pen: DrawingConverter) -> None:
    two = [(50, 50), (50, 200), LIFT, (200, 50), (200, 200)]
    image = grid(pen.image(drawn(two)))
    assert image[:, SIDE // 2 - 2 : SIDE // 2 + 2].sum() == 0
    assert len(decode_strokes(drawn(two))) == 2


def test_a_dot_is_a_dot(pen: DrawingConverter) -> None:
    image = grid(pen.image(drawn([(17, 99)])))
    assert 0 < (image > 0).sum() <= 25
    assert centre(image) == pytest.approx((14, 15), abs=0.1)


def test_the_model_gets_what_it_would_have_got(pen: DrawingConverter) -> None:
    image = pen.image(drawn([(10, 10), (90, 60)]))
    assert_close(pen.input(image), ((image - 33) / 78).float()[None])


def test_inputs_that_are_no_scaled_images_cannot_be_drawn() -> None:
    images = torch.randint(0, 200, (30, 5, 5), dtype=torch.uint8)
    for inputs in (images.float().flatten(1) ** 2, images.float().flatten(1)[:, :20], torch.randn(30, 25)):
        given_ = Inputs(inputs, images=images)
        pictures = Pictures.of(given_, None)
        assert pictures is not None
        with pytest.raises(Refused, match="drawing is for"):
            DrawingConverter.of(pictures, given_)


def test_images_that_are_all_the_same_teach_nothing() -> None:
    images = torch.ones(4, 5, 5)
    with pytest.raises(Refused, match="not all the same"):
        made(images)

"""Rows to the stored precision and back."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dualform.store.codec.float16 import TORCH, Exponents, pack, unpack
from dualform.store.schema import EXPONENTS


def packed_as(dtype: str, rows: Tensor, alike: bool = False) -> tuple[Tensor, Exponents | None]:
    return pack(rows, torch.empty(rows.shape, dtype=TORCH[dtype]), alike=alike)


@given(st.integers(-30, 30), st.integers(0, 2**16))
def test_float16_keeps_eleven_bits_at_any_magnitude(exponent: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 7, generator=generator) * 10.0**exponent
    packed, power = packed_as("float16", rows)
    restored = unpack(packed, power, torch.float32)
    worst = (restored - rows).abs().amax(dim=1) / rows.abs().amax(dim=1)
    assert float(worst.max()) <= 2**-11


def test_rows_of_very_different_size_do_not_disturb_each_other() -> None:
    rows = torch.tensor([[1e-20, -3e-20], [1e20, 2e20], [0.0, 0.0]])
    assert_close(unpack(*packed_as("float16", rows), torch.float32), rows, rtol=2**-11, atol=0)


@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(0, 2**16))
def test_alike_means_that_neighbours_do_not_matter(own: int, beside: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, 7, generator=generator) * 2.0**own
    others = torch.randn(3, 7, generator=generator) * 2.0**beside
    alone, exponent = packed_as("float16", row, alike=True)
    among, exponents = packed_as("float16", torch.cat([others, row]), alike=True)
    assert exponent is not None
    assert exponents is not None
    assert_close(among[3:], alone, rtol=0, atol=0)
    assert exponents[3] == exponent[0]


@given(st.integers(-30, 30), st.integers(-60, 30), st.booleans(), st.integers(0, 2**16))
def test_no_entry_is_off_by_more_than_eleven_bits_of_its_row(first: int, second: int, alike: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, 9, generator=generator) * 2.0 ** torch.tensor([[first], [second], [0], [first]])
    restored = unpack(*packed_as("float16", rows, alike=alike), torch.float32)
    assert bool(((restored - rows).abs() <= 2**-11 * rows.abs().amax(dim=1, keepdim=True)).all())


@given(st.integers(-320, 42), st.booleans(), st.integers(0, 2**16))
@example(39, True, 0)
def test_doubles_beyond_what_a_single_can_hold_fade_out_and_are_never_something_else(
    exponent: int, alike: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, 5, generator=generator, dtype=torch.float64).clamp(-2, 2) * 10.0**exponent
    packed, powers = packed_as("float16", rows, alike=alike)
    assert powers is not None
    assert EXPONENTS[0] <= powers.min() <= powers.max() <= EXPONENTS[-1]
    least = 2.0 ** (EXPONENTS[0] - 24)  # of a float16, times the lowest power
    bound = 2**-11 * rows.abs().amax(dim=1, keepdim=True) + least
    assert bool(((unpack(packed, powers, torch.float64) - rows).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wider_precisions_are_kept_as_they_are(dtype: str) -> None:
    rows = torch.randn(4, 3, dtype=TORCH[dtype])
    packed, power = packed_as(dtype, rows)
    assert power is None
    assert_close(unpack(packed, power, TORCH[dtype]), rows, rtol=0, atol=0)


def test_packing_copies() -> None:
    rows = torch.ones(2, 2)
    packed, _ = packed_as("float32", rows)
    rows.zero_()
    assert_close(packed, torch.ones(2, 2))

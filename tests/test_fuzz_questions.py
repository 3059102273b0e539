"""Random questions have the answers of a loop over the raw files; `python -m tests.fuzz_questions` asks more."""

import pytest

from tests.fuzz_questions import compare
from tests.tally import TRIED

CHUNK = 20


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_answers_are_those_of_a_loop(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            TRIED["answers compared with a loop"] += sum(compare(seed).values())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

"""The benchmark of whole models, on tiny runs: what it counts is what it says."""

from dataclasses import replace

import pytest

from benchmarks.whole_models import Sizes, compare, gpt_subject, lenet_subject, report


@pytest.mark.slow
def test_a_lenet_is_recorded_whole_and_its_bytes_are_those_of_its_maps() -> None:
    measured = compare(lenet_subject(), turn=1)
    convolutions = 28 * 28 * (1 + 6) + 14 * 14 * 6 + 10 * 10 * 16
    assert measured["raw_bytes"] == 4 * 64 * (convolutions + 400 + 120 + 120 + 84 + 84 + 10)
    assert 0.5 < measured["stored_bytes"] / measured["raw_bytes"] < 0.8  # in float16, and the books of seven steps
    assert measured["attributed"] == 1
    assert measured["steps"] == 7
    assert measured["record_overhead"] > 0
    assert len(measured["record_overheads"]) == 6


@pytest.mark.slow
def test_a_gpt_is_recorded_whole_with_its_tied_head() -> None:
    sizes = Sizes(width=16, layers=1, heads=2, tokens=8, vocabulary=32)
    measured = compare(replace(gpt_subject(sizes), turn=1), turn=1)
    block = (16 + 16) * 2 + (16 + 48) + (16 + 16) + (16 + 64) + (64 + 16)
    of_tokens = block + (16 + 16) + (16 + 32) + (1 + 16)  # the last norm, the head, the embedding
    assert measured["raw_bytes"] == 4 * (16 * 8 * of_tokens + 8 * (1 + 16))  # positions: once for the whole batch
    assert measured["attributed"] == 1
    assert measured["dtype"] == "float32"
    lines = report({"GPT": measured}).splitlines()
    assert lines[0].startswith("GPT: 7 steps")
    assert "100% of" in lines[-1]

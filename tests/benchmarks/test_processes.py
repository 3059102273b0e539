"""The benchmark of several processes, on a tiny run: both networks are trained, and what is recorded is exact."""

import pytest

from benchmarks.processes import measured, report


@pytest.mark.slow
def test_two_processes_train_plain_and_recorded() -> None:
    result = measured("MNIST", size=2, turn=2)
    assert len(result["record_overheads"]) == 6
    assert result["certificate"].startswith("dual = primal to ")
    assert "NOT EXACT" not in result["certificate"]
    assert report({"MNIST": {2: result}}).startswith("MNIST, 2 processes: recorded ")

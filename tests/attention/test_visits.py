"""When slots were seen: against a plain loop over what was tagged."""

from pathlib import Path

import pytest
import torch

import dualform
from dualform.errors import UnknownName
from tests.recorder.loops import network, record, sgd, step


@pytest.fixture
def memory(tmp_path: Path) -> dualform.Memory:
    """Twelve steps of six slots in three chapters; the second half is of another task."""
    torch.manual_seed(0)
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for number in range(12):
            recorder.tag(label=torch.arange(6) % 3 + number // 6, task="first" if number < 6 else "second")
            step(model, optimizer)
            if number % 4 == 3:
                recorder.sync()
    return dualform.load(tmp_path / "run")


def naive(steps: range) -> dict[tuple[str, int], tuple[int, int, int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for number in steps:
        for row in range(6):
            found.setdefault(("first" if number < 6 else "second", row % 3 + number // 6), []).append(number)
    return {group: (len(seen), min(seen), max(seen)) for group, seen in found.items()}


@pytest.mark.parametrize("until", [12, 7, 3])
def test_groups_are_seen_when_they_were_tagged(memory: dualform.Memory, until: int) -> None:
    table = memory.until(until).visits("0", by=("task", "label"))
    rows = {(r["task"], r["label"]): (r["visits"], r["first_step"], r["last_step"]) for r in table.rows()}
    assert rows == naive(range(until))


def test_a_view_sees_only_its_own(memory: dualform.Memory) -> None:
    table = memory.where(task="second").without(label=1).visits("0", by="label")
    assert table.to_dict() == {"label": [2, 3], "visits": [12, 12], "first_step": [6, 6], "last_step": [11, 11]}


def test_an_unknown_tag_is_named(memory: dualform.Memory) -> None:
    with pytest.raises(UnknownName, match="no tag 'colour'; choose from 'label', 'task'"):
        memory.visits("0", by="colour")

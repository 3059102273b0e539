"""Groups by many tags, selections by values that are hard to compare, and what cannot be grouped by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import Timeline, Top
from dualform.errors import QueryError, UnknownName

NAN = float("nan")


def recorded(path: Path, batches: int = 1, **tags: Any) -> dualform.Memory:
    rows = max(len(column) for column in tags.values() if not isinstance(column, str))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path) as recorder:
        for chosen in np.array_split(np.arange(rows), batches):
            recorder.tag(**{name: np.asarray(column)[chosen] for name, column in tags.items()})
            optimizer.zero_grad()
            model(torch.randn(len(chosen), 3)).square().sum().backward()
            optimizer.step()
            recorder.sync()
    return dualform.load(path)


def test_combinations_of_many_tags_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kinds = random.integers(0, 10**9, (12, 2000))[:, random.integers(0, 445, 4000)]
    names = [f"tag{i}" for i in range(len(kinds))]
    memory = recorded(tmp_path / "run", 3, **dict(zip(names, kinds, strict=True)))
    table = memory.visits("0", by=tuple(names))
    combinations, counts = np.unique(kinds, axis=1, return_counts=True)
    np.testing.assert_array_equal(np.stack([table[name] for name in names]), combinations)
    np.testing.assert_array_equal(table["visits"], counts)
    layer = memory.attend({"0": torch.ones(3)})["0"]
    assert len(layer.total(by=tuple(names))) == combinations.shape[1]
    assert len(layer.top(1, by=tuple(names), per="tag0")) == combinations.shape[1]
    assert len(memory.group_weights(by=tuple(names)).groups) == combinations.shape[1]


@pytest.mark.parametrize("value", [NAN, np.float64("nan"), [NAN], torch.tensor(NAN), np.array([NAN])])
def test_nan_can_be_chosen(tmp_path: Path, value: Any) -> None:
    memory = recorded(tmp_path / "run", mark=[NAN, 1.0, NAN, -1.0])
    assert memory.where(mark=value).slots("0") == 2
    assert memory.without(mark=value).slots("0") == 2
    assert memory.where(mark=[NAN, 1]).slots("0") == 3
    np.testing.assert_array_equal(memory.visits("0", by="mark")["mark"], [-1.0, 1.0, NAN])
    total = memory.attend({"0": torch.ones(3)})["0"].total(by="mark")
    assert len(total.where(mark=NAN)) == 1


def test_neighbours_of_large_numbers_are_told_apart(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "run", id=[2**53, 2**53 + 1, 1, 2])
    assert memory.where(id=[2**53, 1.0]).slots("0") == 2
    assert memory.where(id=2**53 + 1).visits("0", by="id")["id"].tolist() == [2**53 + 1]
    with pytest.raises(UnknownName):
        memory.where(id=2**53 + 2)


@pytest.mark.parametrize("wanted", [{"step": 1.5}, {"slot": "a"}, {"step": None}, {"label": [[1, 2], [3]]}])
def test_odd_conditions_say_what_was_expected(tmp_path: Path, wanted: dict[str, Any]) -> None:
    with pytest.raises(QueryError, match="whole number|a value or a list"):
        recorded(tmp_path / "run", label=[1, 2, 3]).where(**wanted)


def test_tensors_of_any_precision_choose(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "run", mark=[1.5, 2.0, 3.0])
    assert memory.where(mark=torch.tensor([1.5, 3.0]).bfloat16()).slots("0") == 2


@pytest.mark.parametrize("by", [(), [], [None], ("label", None), 3, True, 0, {"label"}, ("label", ("a",)), 1.5])
def test_odd_groups_are_refused(tmp_path: Path, by: Any) -> None:
    memory = recorded(tmp_path / "run", label=[1, 2, 1])
    layer = memory.attend({"0": torch.ones(3)})["0"]
    for ask in (layer.top, layer.total, memory.group_weights, lambda by: memory.visits("0", by)):
        with pytest.raises(QueryError, match="by is a tag or a tuple of tags"):
            ask(by=by)


def test_lists_and_repeated_tags_are_groups(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "run", label=[1, 2, 1], task=["a", "a", "b"])
    layer = memory.attend({"0": torch.ones(3)})["0"]
    expected = layer.total(by=("label", "task")).to_dict()
    assert layer.total(by=["label", "task"]).to_dict() == expected  # type: ignore[arg-type]
    assert layer.total(by=("label", "task", "label")).to_dict() == expected
    assert memory.visits("0", by=["label"]).to_dict() == memory.visits("0", by="label").to_dict()  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, True, 2.5, "3", None])
def test_odd_counts_are_refused(count: Any) -> None:
    for question in (Top, Timeline):
        with pytest.raises(QueryError, match="must be at least 1"):
            question(count)


@pytest.mark.parametrize("per", [["id"], ("id",), 3, True])
def test_per_is_one_tag(per: Any) -> None:
    with pytest.raises(QueryError, match="per is one tag"):
        Top(3, per=per)


@pytest.mark.parametrize("queries", [1, 6])
@pytest.mark.parametrize("by", ["label", ("label", "task"), ("task", "label")])
def test_per_may_be_one_of_the_groups(tmp_path: Path, by: Any, queries: int) -> None:
    memory = recorded(tmp_path / "run", label=[1, 2, 1, 3], task=["a", "a", "b", "b"])
    layer = memory.attend({"0": torch.randn(queries, 3)})["0"]
    top = layer.top(1, by=by, per="label")
    assert len(top) == len(layer.total(by=by))


def test_a_tag_may_be_called_self(tmp_path: Path) -> None:
    memory = recorded(tmp_path / "run", self=[1, 2, 1])
    assert memory.where(self=1).slots("0") == 2

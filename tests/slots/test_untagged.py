"""Slots without a value of a tag, against loops over lists with None in them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dualform
from dualform.errors import UnknownName
from tests.slots.untagged import LAYER, TABLE, TAGS, Written, groups, in_order, runs, written

SOME: list[list[Any]] = [
    [(7, 0.5, True, "red"), (None, None, None, None), (7, None, False, "red")],
    [(None, None, None, None), (0, 0.0, False, ""), (9, 2.5, None, None)],
]
by_tags = st.lists(st.sampled_from(TAGS), min_size=1, max_size=3, unique=True).map(tuple)


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64), torch.as_tensor(expected), rtol=1e-9, atol=1e-9
    )


def slots_of(view: dualform.Memory) -> list[int]:
    """Which slots a view has: all of them, by attention."""
    layer = view.attend({LAYER: torch.ones(1, 2, dtype=torch.float64)})[LAYER]
    return sorted(layer.top(1000)["slot"].tolist())


@given(runs(), st.data())
def test_views_are_what_a_loop_would_keep(run: Written, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(TAGS), min_size=1, max_size=2, unique=True))
    # the other layer's slots have no tags, so None is always known
    wanted = {tag: data.draw(st.sets(st.sampled_from([*run.column(tag), None]))) for tag in chosen}
    fits = [all(run.column(tag)[slot] in values for tag, values in wanted.items()) for slot in range(len(run.tags))]
    conditions = {tag: list(values) for tag, values in wanted.items()}
    where, without = run.memory.where(**conditions), run.memory.without(**conditions)
    assert slots_of(where) == [slot for slot, fit in enumerate(fits) if fit]
    assert slots_of(without) == [slot for slot, fit in enumerate(fits) if not fit]
    assert (where.slots(LAYER), without.slots(LAYER)) == (sum(fits), len(fits) - sum(fits))
    assert_close(where.added(LAYER)["fc.weight"], run.added(fits))
    assert_close(without.added(LAYER)["fc.weight"], run.added([not fit for fit in fits]))


@given(runs(), by_tags)
def test_groups_are_those_of_a_loop(run: Written, by: tuple[str, ...]) -> None:
    visits = run.memory.visits(LAYER, by=by)
    query = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    layer, scores = run.memory.attend({LAYER: query})[LAYER], (run.keys @ query.mT)[:, 0]
    totals, sizes = layer.total(by=by), layer.total(by=by, absolute=True)
    shares = run.memory.group_weights(by=by)
    known = [tuple(row[tag] for tag in by) for row in shares.groups.rows()]
    assert known == in_order([*known, (None,) * len(by)])
    for row, (group, members) in enumerate(groups(run, by)):
        steps = [step for step, member in zip(run.steps, members, strict=True) if member]
        for table in (visits, totals, sizes):
            assert tuple(table[tag].tolist()[row] for tag in by) == group
        assert [visits[name][row] for name in ("visits", "first_step", "last_step")] == [
            len(steps),
            steps[0],
            steps[-1],
        ]
        assert_close(totals["total"][row], scores[members].sum())
        assert_close(sizes["total"][row], scores[members].abs().sum())
        assert_close(shares.added(LAYER, [known.index(group)])["fc.weight"], run.added(members))
    assert len(visits) == len(totals) == row + 1
    table_group = known.index((None,) * len(by))
    every = run.memory.added(TABLE)["table.weight"]
    assert_close(shares.added(TABLE, [table_group])["table.weight"], every)


@given(runs(), st.sampled_from(TAGS), st.booleans())
def test_examples_are_those_of_a_loop(run: Written, tag: str, often: bool) -> None:
    """Of few queries by a scan, of many by an index."""
    queries = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64).repeat(3 if often else 1, 1)
    layer = run.memory.attend({LAYER: queries})[LAYER]
    scores = run.keys @ queries.mT  # (slots, queries)
    expected = {group: scores[members].sum(dim=0) for (group,), members in groups(run, [tag])}
    top = layer.top(100, per=tag)
    for query in range(len(queries)):
        rows = list(top.where(query=query).rows())
        assert in_order([row[tag] for row in rows]) == in_order(list(expected))
        for row in rows:
            assert_close(row["score"], expected[row[tag]][query])
            assert row["visits"] == run.column(tag).count(row[tag])
        assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


@given(runs(), st.sampled_from(TAGS))
def test_tables_have_none_where_slots_have_no_value(run: Written, tag: str) -> None:
    layer = run.memory.attend({LAYER: torch.ones(1, 2, dtype=torch.float64)})[LAYER]
    for table in (layer.top(1000), layer.top(1000, by=tag), layer.contribution(torch.ones(3)).top(1000)):
        found = dict(zip(table["slot"].tolist(), table[tag].tolist(), strict=True))
        assert [found[slot] for slot in range(len(run.tags))] == run.column(tag)
    for view in (run.memory, run.memory.without(**{tag: None})):
        values = view.visits(LAYER, by=tag)[tag]
        has_objects = None in values.tolist() or (tag == "colour" and len(max(values.tolist(), default="")) > 64)
        assert (values.dtype == object) == has_objects


@pytest.fixture(scope="module")
def some() -> Written:
    return written(SOME, [True, False])


def test_a_missing_value_is_not_the_zero_that_is_stored(some: Written) -> None:
    assert [some.memory.where(**{tag: zero}).slots(LAYER) for tag, zero in _blanks()] == [1, 1, 2, 1]
    assert [some.memory.where(**{tag: zero}).slots(TABLE) for tag, zero in _blanks()] == [0, 0, 0, 0]
    assert [some.memory.where(**{tag: None}).slots(TABLE) for tag in TAGS] == [2, 2, 2, 2]


def _blanks() -> Sequence[tuple[str, Any]]:
    return [("id", 0), ("share", 0.0), ("odd", False), ("colour", "")]


def test_an_unknown_value_lists_the_known_ones_and_none_last(some: Written) -> None:
    with pytest.raises(UnknownName, match=r"no value of tag 'id': 8; choose from 0, 7, 9, None"):
        some.memory.where(id=8)


def test_none_is_unknown_where_every_slot_has_a_value(tmp_path: Any) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(torch.nn.Sequential(model), optimizer, tmp_path / "run") as recorder:
        recorder.tag(id=[0, 1])
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
    with pytest.raises(UnknownName, match=r"no value of tag 'id': None; choose from 0, 1$"):
        dualform.load(tmp_path / "run").without(id=None)


def test_columns_without_a_missing_value_keep_their_dtype(some: Written) -> None:
    layer = some.memory.without(id=None).attend({LAYER: torch.ones(1, 2, dtype=torch.float64)})[LAYER]
    for table in (layer.top(9), layer.top(9, by="id"), layer.top(9, per="id")):
        assert table["id"].dtype.kind == "i"
    assert layer.top(9)["share"].dtype == object


def test_missing_values_print_and_are_null(some: Written) -> None:
    table = some.memory.visits(LAYER, by=("colour", "id"))
    assert [row["id"] for row in table.where(colour=None).rows()] == [9, None]
    assert repr(table).splitlines()[-1].split() == ["None", "None", "2", "0", "1"]
    assert table.to_dict()["colour"][-1] is None

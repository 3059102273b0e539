"""Tables against naive loops over all slots: top, total, timeline, views, for batches of queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform import Output, Timeline, Top, Total
from dualform.attention.spotlight import LayerSpotlight, Spotlight
from dualform.errors import NotRecorded, QueryError, UnknownName
from dualform.memory import Memory

STEPS, BATCH, IDS = 9, 5, 12


class Naive:
    """All keys and tags of the first layer, kept by hand."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in ("step", "id", "label", "task")}

    def add(self, step: int, keys: Tensor, ids: Tensor, labels: Tensor, task: str) -> None:
        self.keys.append(keys.clone())
        self.columns["step"] += [step] * len(ids)
        self.columns["id"] += ids.tolist()
        self.columns["label"] += labels.tolist()
        self.columns["task"] += [task] * len(ids)

    def scores(self, queries: Tensor) -> np.ndarray:
        return (torch.cat(self.keys) @ queries.mT).numpy()  # (slots, queries)


def train(path: Path, **options: Any) -> tuple[nn.Sequential, Naive]:
    torch.manual_seed(3)
    # Small integers make dot products exact, so that equal keys tie exactly wherever they stand.
    data, labels = torch.randint(-3, 4, (IDS, 6)).double(), torch.randint(3, (IDS,))
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    naive = Naive()
    with dualform.record(model, optimizer, path, **{"dtype": "float64", **options}) as recorder:
        for step in range(STEPS):
            ids = torch.randint(IDS, (BATCH,))
            task = "first" if step < 5 else "second"
            recorder.tag(id=ids, label=labels[ids], task=task)
            naive.add(step, data[ids], ids, labels[ids], task)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[ids]), labels[ids]).backward()
            optimizer.step()
            if step in (2, 6):
                recorder.sync()  # several shards
    return model, naive


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Memory, nn.Sequential, Naive, Tensor]:
    path = tmp_path_factory.mktemp("runs") / "run"
    model, naive = train(path)
    return dualform.load(path), model, naive, torch.randint(-3, 4, (4, 6)).double()


def naive_top(scores: np.ndarray, k: int, chosen: np.ndarray) -> list[int]:
    return sorted(np.flatnonzero(chosen).tolist(), key=lambda slot: (-scores[slot], slot))[:k]


def test_top_of_each_query_with_ties_by_slot(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, naive, queries = case
    scores = naive.scores(queries)
    table = memory.attend(model, queries)["0"].top(7)
    for query in range(len(queries)):
        expected = naive_top(scores[:, query], 7, np.ones(len(scores), dtype=bool))
        found = table.where(query=query)
        assert found["slot"].tolist() == expected  # the same examples come again and again: many ties
        np.testing.assert_allclose(found["score"], scores[expected, query])
        for tag in ("step", "id", "label", "task"):
            assert found[tag].tolist() == [naive.columns[tag][slot] for slot in expected]


@pytest.mark.parametrize("absolute", [False, True])
def test_top_by_group(case: tuple[Memory, nn.Sequential, Naive, Tensor], absolute: bool) -> None:
    memory, model, naive, queries = case
    scores = np.abs(naive.scores(queries)) if absolute else naive.scores(queries)
    table = memory.attend(model, queries)["0"].top(2, by=("task", "label"), absolute=absolute)
    groups = sorted(set(zip(naive.columns["task"], naive.columns["label"], strict=True)))
    expected = []
    for query in range(len(queries)):
        for task, label in groups:
            chosen = (np.array(naive.columns["task"]) == task) & (np.array(naive.columns["label"]) == label)
            expected += [(query, task, label, slot) for slot in naive_top(scores[:, query], 2, chosen)]
    columns = (table[name].tolist() for name in ("query", "task", "label", "slot"))
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("by", [None, "label"])
def test_top_per_id_sums_all_visits(case: tuple[Memory, nn.Sequential, Naive, Tensor], by: str | None) -> None:
    memory, model, naive, queries = case
    scores, ids = naive.scores(queries), np.array(naive.columns["id"])
    table = memory.attend(model, queries)["0"].top(3, by=by, per="id").where(query=1)
    sums = {i: scores[ids == i, 1].sum() for i in set(ids.tolist())}
    label = dict(zip(naive.columns["id"], naive.columns["label"], strict=True))
    expected: list[int] = []
    for group in [None] if by is None else sorted(set(label.values())):
        members = [i for i in sums if group is None or label[i] == group]
        expected += sorted(members, key=lambda i: -sums[i])[:3]
    assert table["id"].tolist() == expected
    np.testing.assert_allclose(table["score"], [sums[i] for i in expected])
    assert table["visits"].tolist() == [int((ids == i).sum()) for i in expected]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("layer", ["0", "2"])
def test_totals_and_timeline(case: tuple[Memory, nn.Sequential, Naive, Tensor], absolute: bool, layer: str) -> None:
    memory, model, _, queries = case
    spotlight = memory.attend(model, queries)[layer]
    everything = spotlight.top(STEPS * BATCH)  # checked above; of layer 2 this is all there is to compare with
    score = np.abs(everything["score"]) if absolute else everything["score"]
    totals = spotlight.total(by="label", absolute=absolute)
    for query, label, total in zip(totals["query"], totals["label"], totals["total"], strict=True):
        chosen = (everything["query"] == query) & (everything["label"] == label)
        np.testing.assert_allclose(total, score[chosen].sum(), atol=1e-12)
    timeline = spotlight.timeline(bins=4, absolute=absolute)
    for row in timeline.rows():
        chosen = (everything["query"] == row["query"]) & (everything["step"] >= row["first_step"])
        chosen &= everything["step"] < row["last_step"]
        np.testing.assert_allclose(row["total"], score[chosen].sum(), atol=1e-12)
    np.testing.assert_allclose(spotlight.total(absolute=absolute)["total"].sum(), score.sum())


def test_absolute_totals_of_a_positive_query_over_negative_keys(
    case: tuple[Memory, nn.Sequential, Naive, Tensor],
) -> None:
    memory, _, naive, queries = case
    layer = dualform.load(memory.path).attend({"0": queries.abs()})["0"]
    scores = np.abs(naive.scores(queries.abs()))
    for _ in range(2):  # the second time it is known that keys are negative
        np.testing.assert_allclose(layer.total(absolute=True)["total"], scores.sum(axis=0))


def test_collect_is_the_same_in_one_reading(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, _, queries = case
    spotlight = memory.attend(model, queries)
    top, total, timeline, output = spotlight.collect(Top(3), Total("label", absolute=True), Timeline(3), Output())["2"]
    assert top.to_dict() == spotlight["2"].top(3).to_dict()
    assert total.to_dict() == spotlight["2"].total("label", absolute=True).to_dict()
    assert timeline.to_dict() == spotlight["2"].timeline(3).to_dict()
    assert_close(output, model(queries).detach(), rtol=1e-9, atol=1e-9)


def test_many_queries_are_asked_in_portions(
    case: tuple[Memory, nn.Sequential, Naive, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, model, _, queries = case
    whole = memory.attend(model, queries)["0"].collect(Top(2), Total("label"), Output())
    monkeypatch.setattr("dualform.attention.questions._MAX_QUERIES", 3)
    top, total, output = memory.attend(model, queries)["0"].collect(Top(2), Total("label"), Output())
    assert top.to_dict() == whole[0].to_dict()
    np.testing.assert_allclose(total["total"], whole[1]["total"])
    assert_close(output, whole[2])


def test_views_hold_what_they_say(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, naive, queries = case
    labels = np.array(naive.columns["label"])
    view = memory.where(label=[0, 2]).without(task="second")
    expected = np.isin(labels, [0, 2]) & (np.array(naive.columns["task"]) == "first")
    assert view.slots("0") == int(expected.sum())
    table = view.attend(model, queries)["0"].top(100).where(query=0)
    assert sorted(table["slot"].tolist()) == np.flatnonzero(expected).tolist()
    assert memory.where(step=range(3)).slots("0") == memory.until(3).slots("0") == 3 * BATCH
    assert memory.where(slot=[0, 44]).slots("0") == 2
    assert "task" in repr(view)


def test_k_larger_than_the_number_of_slots_gives_all(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, _, queries = case
    assert len(memory.attend(model, queries[:1])["0"].top(10_000)) == STEPS * BATCH


def test_an_empty_view_answers_with_nothing_but_the_initial_part(
    case: tuple[Memory, nn.Sequential, Naive, Tensor],
) -> None:
    memory, model, _, queries = case
    layer = memory.until(0).attend(model, queries)["2"]
    assert len(layer.top(5)) == 0
    assert len(layer.top(5, per="id")) == 0
    assert layer.total(by="label")["total"].tolist() == [0.0] * 12
    assert_close(layer.output(), layer.initial())


def test_unknown_names_raise_and_list_the_known_ones(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, _, queries = case
    spotlight = memory.attend(model, queries)
    with pytest.raises(UnknownName, match="no layer 'nope'; choose from '0', '2'"):
        spotlight["nope"]
    with pytest.raises(UnknownName, match="no layer 'nope'"):
        memory.weights("nope")
    with pytest.raises(UnknownName, match="no tag 'nope'; choose from 'id', 'label', 'task'"):
        spotlight["0"].total(by="nope")
    with pytest.raises(UnknownName, match="no tag 'nope'"):
        memory.where(nope=1)
    with pytest.raises(UnknownName, match="no value of tag 'label': 7; choose from 0, 1, 2"):
        memory.where(label=7)
    with pytest.raises(UnknownName, match="choose from 'first', 'second'"):
        memory.without(task="third")
    with pytest.raises(UnknownName, match="column"):
        spotlight["0"].top(1)["nope"]


def test_questions_that_do_not_fit_raise(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, _, queries = case
    with pytest.raises(QueryError, match="has 6 entries, this one has 5"):
        memory.attend({"0": queries[:, :5]})
    with pytest.raises(UnknownName, match="layer in this model called '2'"):
        memory.attend(nn.Sequential(nn.Linear(6, 4)), queries)
    with pytest.raises(QueryError, match=r"recorded with a '2.weight' of shape \(3, 4\)"):
        memory.attend(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), queries)
    with pytest.raises(QueryError, match="k must be at least 1"):
        memory.attend(model, queries)["0"].top(0)
    with pytest.raises(QueryError, match="bins must be at least 1"):
        memory.attend(model, queries)["0"].timeline(0)
    with pytest.raises(QueryError, match="between 0 and 9"):
        memory.until(10)


def test_attend_leaves_the_model_as_it_was_and_notes_other_weights(
    case: tuple[Memory, nn.Sequential, Naive, Tensor],
) -> None:
    memory, model, _, queries = case
    model.train()
    assert memory.attend(model, queries).note is None
    assert model.training
    assert not model[0]._forward_pre_hooks
    muted = memory.without(label=0).model(model)
    note = memory.attend(muted, queries).note
    assert note is not None
    assert "not the one this run ends with" in note


def test_tables_are_for_people_and_programs(case: tuple[Memory, nn.Sequential, Naive, Tensor]) -> None:
    memory, model, _, queries = case
    table = memory.attend(model, queries)["0"].top(30)
    assert "100 more rows" in repr(table)
    assert table.to_pandas()["slot"].tolist() == table["slot"].tolist()
    assert table._repr_html_().startswith("<table>")
    assert memory._repr_html_().startswith("<table>")
    assert "steps" in repr(memory)


def test_keys_only_answers_attention_and_says_what_is_missing(tmp_path: Path) -> None:
    model, naive = train(tmp_path / "run", values=False)
    memory, queries = dualform.load(tmp_path / "run"), torch.randint(-3, 4, (2, 6)).double()
    top = memory.attend(model, queries)["0"].top(3).where(query=0)
    assert top["slot"].tolist() == naive_top(naive.scores(queries)[:, 0], 3, np.ones(STEPS * BATCH, dtype=bool))
    assert "coefficient" not in top.columns
    certificate = memory.verify()
    assert not certificate.ok
    assert certificate.headline.startswith("NOT CERTIFIABLE: keys only")
    assert certificate.steps_audited == STEPS
    with pytest.raises(NotRecorded, match="keys only"):
        memory.weights("0")
    with pytest.raises(NotRecorded, match="keys only"):
        memory.attend(model, queries)["0"].output()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 5e-3)])
def test_coarser_storage_stays_close(tmp_path: Path, dtype: str, tolerance: float) -> None:
    model, naive = train(tmp_path / "run", dtype=dtype)
    memory, queries = dualform.load(tmp_path / "run"), torch.randn(3, 6)
    layer = memory.attend(model.float(), queries)["0"]
    np.testing.assert_allclose(
        layer.top(1)["score"], naive.scores(queries.double()).max(axis=0), rtol=tolerance, atol=tolerance
    )
    assert layer.top(1)["score"].dtype == np.float32
    assert_close(layer.output(), model[0](queries).detach(), rtol=tolerance, atol=tolerance)


def test_html_shows_hostile_names_as_text() -> None:
    layer = LayerSpotlight(None, "<script>", torch.ones(1, 2), None, None)  # type: ignore[arg-type]
    html = Spotlight({"<script>": layer}, note="<img src=x> & co")._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "&amp; co" in html

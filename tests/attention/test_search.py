"""The best slots, found by bounds, against a look at every slot; and the bounds, which must hold for every key."""

import gc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dualform
from dualform import Top
from dualform.attention import index, search
from dualform.attention import plan as planning
from dualform.attention.search import Sketch
from dualform.memory import Memory
from dualform.slots import Selection, Slots, StoredKeys
from dualform.store import Run

WIDTH = 48
FEW = settings(max_examples=settings().max_examples // 2)


def remember(path: Path, keys: Tensor, labels: Tensor, dtype: str, sync: int = 3, ids: Tensor | None = None) -> Memory:
    """A run whose only layer was given these keys, some at a time."""
    ids = torch.arange(len(keys)) if ids is None else ids
    layer = nn.Linear(keys.shape[1], 2).to(keys.dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with dualform.record(nn.Sequential(layer), optimizer, path, dtype=dtype) as recorder:
        for number, (some, label, own) in enumerate(zip(keys.split(16), labels.split(16), ids.split(16), strict=True)):
            recorder.tag(label=label, id=own)
            optimizer.zero_grad()
            (layer(some) / (some.abs().max() or 1.0)).sum().backward()
            optimizer.step()
            if number % sync == 0:
                recorder.sync()
    return dualform.load(path)


def slots_of(memory: Memory) -> Slots:
    run = Run(memory.path)
    return Slots(run, run.layers["0"])


def is_indexed(layer: dualform.LayerSpotlight) -> bool:
    return "an index of" in layer.plan(Top(1)).explain()


def close_to_few_directions(count: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    few = torch.randn(count, 4, generator=generator) @ torch.randn(4, WIDTH, generator=generator)
    return (few + 0.03 * torch.randn(count, WIDTH, generator=generator)).to(dtype)


@st.composite
def some_keys(draw: st.DrawFn) -> Tensor:
    """Of any rank, with keys that come again, keys of nothing but zeros, and keys of very different sizes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    count, rank = draw(st.integers(1, 80)), draw(st.integers(1, WIDTH))
    keys = torch.randn(count, rank, generator=generator) @ torch.randn(rank, WIDTH, generator=generator)
    keys *= torch.logspace(0, draw(st.integers(-3, 3)), count)[:, None]
    if draw(st.booleans()):
        keys = keys.relu()
    if draw(st.booleans()):
        keys[:: draw(st.integers(2, 5))] = keys[0].clone()
    if draw(st.booleans()):
        keys[-1] = 0
    return keys


@FEW
@given(
    keys=some_keys(), dtype=st.sampled_from(["float16", "float32", "float64"]), k=st.integers(1, 9),
    by=st.sampled_from([None, "label"]), absolute=st.booleans(), portion=st.sampled_from([1, 1 << 24]),
)  # fmt: skip
def test_the_best_are_those_of_a_look_at_every_slot(
    keys: Tensor, dtype: str, k: int, by: str | None, absolute: bool, portion: int
) -> None:
    labels = torch.arange(len(keys)) % 3
    queries = torch.cat([keys[:2].double(), torch.randn(2, WIDTH, dtype=torch.float64), torch.zeros(1, WIDTH).double()])
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        memory = remember(Path(directory) / "run", keys.to(torch.float64), labels, dtype)
        slots, everything = slots_of(memory), Selection(memory.steps)
        rows = [block.key_rows for block in slots.stream(slots.chapters(everything), everything)]
        stored = slots.keys.take(np.concatenate(rows)).double()
        scores = (stored @ queries.mT).abs() if absolute else stored @ queries.mT  # (slots, queries)
        patch.setattr(index, "FEW_QUERIES", 0)
        patch.setattr(search, "_MIN_DIRECTIONS", 8)  # so that there is a rest
        patch.setattr(search, "_MAX_BOUNDS", portion)
        layer = memory.attend({"0": queries})["0"]
        table = layer.top(k, by=by, absolute=absolute)
        assert is_indexed(layer)
    for query in range(len(queries)):
        for label in [None] if by is None else sorted(set(labels.tolist())):
            chosen = np.ones(len(keys), dtype=bool) if label is None else labels.numpy() == label
            found = table.where(query=query) if label is None else table.where(query=query, label=label)
            expected = np.sort(scores[:, query].numpy()[chosen])[::-1][:k]
            size = float(stored.norm(dim=1).max() * queries[query].norm())
            slack = size * WIDTH * torch.finfo(slots.dtype).eps
            np.testing.assert_allclose(found["score"], expected, rtol=0, atol=slack)
            np.testing.assert_allclose(scores[found["slot"], query], expected, rtol=0, atol=slack)
            assert len(set(found["slot"].tolist())) == len(found)
            assert chosen[found["slot"]].all()


@given(keys=some_keys(), dtype=st.sampled_from(["float16", "float64"]), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_no_weight_is_above_its_bound(keys: Tensor, dtype: str, scale: float) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_MIN_DIRECTIONS", 8)
        memory = remember(Path(directory) / "run", keys.double(), torch.zeros(len(keys)).long(), dtype)
        stored = slots_of(memory).keys
        made = Sketch.of(stored, WIDTH, 1 << 20)
        assert made is not None
        every = stored.take(np.arange(len(stored)))
        queries = scale * torch.cat([every[:3], -every[:3], torch.randn(3, WIDTH, dtype=every.dtype)])
        for absolute in (False, True):
            bounds = torch.empty(len(queries), len(every), dtype=every.dtype)
            sketched = made.of_queries(queries)
            assert sketched is not None
            made.bounds(sketched, absolute, bounds)
            exact = queries.double() @ every.double().mT
            assert (bounds.double() >= (exact.abs() if absolute else exact)).all()


def test_a_key_that_comes_again_ties_and_the_earlier_slot_is_first(tmp_path: Path) -> None:
    keys = close_to_few_directions(60, seed=1).repeat(3, 1)
    memory = remember(tmp_path / "run", keys, torch.zeros(len(keys)).long(), "float16")
    asked = memory.attend({"0": close_to_few_directions(5, seed=2)})["0"]
    assert is_indexed(asked)
    table = asked.top(9)
    for query in range(5):
        slots = table.where(query=query)["slot"]
        assert (slots[0::3] + 60).tolist() == slots[1::3].tolist()
        assert (slots[1::3] + 60).tolist() == slots[2::3].tolist()


@FEW
@given(keys=some_keys(), k=st.integers(1, 5), by=st.sampled_from([None, "label"]), until=st.integers(0, 5))
def test_examples_summed_up_once_score_as_their_slots_do(keys: Tensor, k: int, by: str | None, until: int) -> None:
    labels, queries = torch.arange(len(keys)) % 4, torch.randn(3, WIDTH, dtype=torch.float64)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        memory = remember(Path(directory) / "run", keys.double(), labels, "float64", ids=torch.arange(len(keys)) % 7)
        view = memory.until(min(until, memory.steps))
        patch.setattr(index, "FEW_QUERIES", 1000)
        read = view.attend({"0": queries})["0"].top(k, by=by, per="id")
        patch.setattr(index, "FEW_QUERIES", 0)
        patch.setattr(planning, "carry_out", lambda plan: pytest.fail("the slots were read again"))
        for _ in range(2):
            summed = view.attend({"0": queries})["0"].top(k, by=by, per="id")
            assert summed.columns == read.columns
            slack = 1e-9 * float(keys.abs().max())
            np.testing.assert_allclose(summed["score"], read["score"], rtol=1e-9, atol=slack)
            for row in summed.rows():  # equal scores may come in any order, but each is that of its own example
                own = (np.arange(len(keys)) % 7 == row["id"])[: 16 * view.steps]
                own &= by is None or (labels.numpy() == row["label"])[: 16 * view.steps]
                assert row["visits"] == own.sum()
                score = float((keys[: 16 * view.steps][torch.from_numpy(own)].double() @ queries[row["query"]]).sum())
                np.testing.assert_allclose(row["score"], score, rtol=1e-9, atol=slack)


@pytest.mark.slow
def test_few_keys_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = close_to_few_directions(2000, seed=3)
    memory = remember(tmp_path / "run", keys, torch.arange(2000) % 2, "float16", sync=50)
    looked: list[int] = []
    weights = StoredKeys.weights

    def counted(self: StoredKeys, index: np.ndarray, queries: Tensor) -> Tensor:
        looked.append(len(index))
        return weights(self, index, queries)

    monkeypatch.setattr(StoredKeys, "weights", counted)
    monkeypatch.setattr(index, "FEW_QUERIES", 0)
    for query in close_to_few_directions(10, seed=4):
        memory.attend({"0": query[None]})["0"].top(10, by="label")
    assert 20 * 10 <= sum(looked) < 10 * 2000 / 20


def test_a_sketch_is_made_when_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = close_to_few_directions(40, seed=5)
    memory = remember(tmp_path / "run", keys, torch.zeros(40).long(), "float32")
    made: list[str] = []
    monkeypatch.setattr(Sketch, "of", classmethod(lambda cls, keys, width, max_bytes: made.append("one")))
    for queries in (1, 2, 1, 1):
        memory.attend({"0": keys[:queries]})["0"].top(1)
        memory.where(label=0).attend({"0": keys[:0]})
    assert made == ["one"]


@pytest.mark.parametrize(("keys", "queries"), [(1e-25, 1.0), (1e25, 1.0), (1.0, 1e-25), (1.0, 1e25)])
def test_beyond_the_squares_of_floats_all_slots_are_read(tmp_path: Path, keys: float, queries: float) -> None:
    given, asked = close_to_few_directions(40, seed=6), close_to_few_directions(4, seed=7)
    memory = remember(tmp_path / "run", keys * given, torch.zeros(40).long(), "float32")
    found = memory.attend({"0": queries * asked})["0"].top(3)
    expected = (asked @ given.mT).topk(3).indices.view(-1)
    assert found["slot"].tolist() == expected.tolist()


def test_what_is_kept_has_little_room_and_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = close_to_few_directions(200, seed=8)
    monkeypatch.setattr(index, "FEW_QUERIES", 0)
    monkeypatch.setattr(index, "_KEPT_BYTES", 200 * 4 * 40)  # of 17 numbers for each slot, and 48 and more for each id
    remember(tmp_path / "run", keys, torch.zeros(200).long(), "float32", ids=torch.arange(200) % 10)
    run = Run(tmp_path / "run")
    budget = (sketches := index.Sketches(run)).budget
    memory, whole = Memory(run, sketches=sketches), budget.left
    view = memory.where(label=0)
    assert view.attend({"0": keys[:1]})["0"].top(3, per="id")["id"][0] == 0
    summed = whole - budget.left
    assert summed == 4 * 10 * (WIDTH + 17)
    memory.attend({"0": keys[:1]})["0"].top(1)
    assert sketches.of("0") is not None
    assert whole - budget.left == summed + 4 * 200 * 17
    del view
    gc.collect()
    assert whole - budget.left == 4 * 200 * 17


def test_a_sketch_gets_coarser_before_it_gets_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randn(50, 300)
    remember(tmp_path / "run", keys, torch.zeros(50).long(), "float32")
    run = Run(tmp_path / "run")
    stored = Slots(run, run.layers["0"]).keys
    sizes = []
    for most in (1 << 29, 4 * 50 * 20, 4 * 50 * 10):
        monkeypatch.setattr(search, "_MAX_SKETCH_BYTES", most)
        made = Sketch.of(stored, 300, 1 << 20)
        sizes.append(made and made.nbytes // (4 * 50))
    assert sizes == [26, 20, None]


def test_a_run_without_a_slot_has_no_best(tmp_path: Path) -> None:
    layer = nn.Linear(4, 2)
    with dualform.record(nn.Sequential(layer), torch.optim.SGD(layer.parameters(), lr=0.1), tmp_path / "run"):
        pass
    asked = dualform.load(tmp_path / "run").attend({"0": torch.ones(9, 4)})["0"]
    assert len(asked.top(3)) == len(asked.top(3)) == 0

"""One plan, one engine: however the chapters of a run are dealt out, and in whatever order the parts are merged."""

import ast
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dualform
from dualform import Memory, Timeline, Top, Total
from dualform.dual.replay import Replay
from dualform.engine import Plan, carry_out
from tests.engine.plans import assert_same, carried_out, caught, empty, engine, merged, plain

pytestmark = pytest.mark.slow

CHAPTERS = 7
EXAMPLES = 9
# What is fed by slots, and has to merge. What is fed by a replay goes from step to step and is never split.
FOLDS = {
    "TopFold", "TotalFold", "KeySumFold", "KeyCountFold", "VisitsFold", "CountFold", "MembersFold", "ExamplesFold",
    "SumFold", "OutputFold", "ScoresFold", "GroupWeightsFold", "CertifyFold", "RoundingFold", "PositionFold",
}  # fmt: skip
OF_REPLAYS = {"elementwise.py", "certify_elementwise.py"}

FEW = settings(max_examples=settings().max_examples // 4)


def record(path: Path, inputs: Tensor, network: nn.Sequential, optimizer: torch.optim.Optimizer) -> Memory:
    """Chapters of one to three steps; every example comes several times, so that its scores tie."""
    labels = torch.arange(EXAMPLES) % 3
    with dualform.record(network, optimizer, path, dtype="float64") as recorder:
        for chapter in range(CHAPTERS):
            for _ in range(1 + chapter % 3):
                some = torch.randint(EXAMPLES, (5,))
                recorder.tag(id=some, label=labels[some])
                optimizer.zero_grad()
                F.cross_entropy(network(inputs[some]), labels[some]).backward()
                optimizer.step()
            recorder.sync()
    return dualform.load(path)


def of_vectors(path: Path, seed: int = 0, adam: bool = False) -> Memory:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    sgd = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1) if adam else sgd
    # small whole numbers: different keys have equal scores, too
    return record(path, torch.randint(-2, 3, (EXAMPLES, 5)).double(), network, optimizer)


def of_tokens(path: Path) -> Memory:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    return record(path, torch.randint(6, (EXAMPLES,)), network, optimizer)


def of_halves(path: Path) -> Memory:
    """Under autocast, so that gradients are rounded."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        return record(path, torch.randn(EXAMPLES, 5), network, optimizer)


def with_maps() -> nn.Sequential:
    torch.manual_seed(4)
    layers = nn.Conv1d(2, 3, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)
    return nn.Sequential(*layers).double()


def of_maps(path: Path) -> Memory:
    network = with_maps()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    return record(path, torch.randn(EXAMPLES, 2, 2, dtype=torch.float64), network, optimizer)


def width(memory: Memory, layer: str) -> int:
    return int(memory.summary()["layers"][layer]["d_in"])


def everything(memory: Memory) -> list[Any]:
    """The answers to questions that between them feed every fold there is."""
    shares, certificate = memory.group_weights(by="label"), memory.verify()
    answers: list[Any] = [certificate.ok]
    for name in memory.layers:
        queries = torch.ones(2, width(memory, name), dtype=torch.float64) * torch.tensor([[1], [-2]])
        layer = memory.attend({name: queries})[name]
        answers += layer.collect(Top(4), Top(2, by="label", absolute=True), Top(3, per="id"), Total(valued=True))
        answers += layer.collect(Total("label", absolute=True), Total(("id", "label"), absolute=True, valued=True))
        answers += layer.collect(Top(4), Top(2, by="label"), Top(3, per="id"), Timeline(5))  # by an index
        contribution = layer.contribution(torch.ones(layer.output().shape[1], dtype=torch.float64))
        answers += contribution.collect(Top(3), Top(2, by="label"), Total("id", absolute=True))
        answers += [memory.visits(name, by="label"), memory.slots(name), memory.weights(name), layer.output()]
        answers += [shares.added(name, [group]) for group in range(len(shares.groups))]
        if memory.summary()["layers"][name]["kind"] == "Convolution":
            spotlight = memory.attend(with_maps(), torch.ones(2, 2, 2, dtype=torch.float64))
            answers.append(torch.from_numpy(spotlight[name].position_pairs(1, label=[0, 2])))
    return [plain(answer) for answer in answers]


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> list[Memory]:
    path = tmp_path_factory.mktemp("runs")
    makers = {"vectors": of_vectors, "tokens": of_tokens, "halves": of_halves, "maps": of_maps}
    return [make(path / name) for name, make in makers.items()]


@pytest.fixture(scope="module")
def plans(memories: list[Memory]) -> dict[str, list[Plan]]:
    """By the folds in them; of whole memories, and of views that begin and end within chapters."""
    found: dict[str, list[Plan]] = {}
    for memory in memories:
        for view in (memory, memory.until(memory.steps - 2).without(label=1)):
            for plan in caught(partial(everything, view)):
                for name in {type(fold).__name__ for fold in plan.folds}:
                    found.setdefault(name, []).append(plan)
    return found


def chapters_of(plan: Plan) -> list[int]:
    return list(plan.source.chapters(plan.selection, plan.since))


def test_every_fold_over_slots_is_among_those_tested_here(plans: dict[str, list[Plan]]) -> None:
    package, declared = Path(dualform.__file__).parent, set()
    for path in (path for path in package.rglob("*.py") if path.name not in OF_REPLAYS):
        for node in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            protocol = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
            if {"add", "merge", "finish"} <= methods and not protocol:
                declared.add(node.name)
    assert declared == FOLDS == set(plans)


@pytest.mark.parametrize("fold", sorted(FOLDS))
def test_any_split_merged_in_any_order_gives_the_same_answer(fold: str, plans: dict[str, list[Plan]]) -> None:
    @FEW
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        plan = data.draw(st.sampled_from(plans[fold]))
        parts: dict[int, list[int]] = {}
        for chapter in chapters_of(plan):
            parts.setdefault(data.draw(st.integers(0, 3)), []).append(chapter)
        order = data.draw(st.permutations(sorted(parts)))
        assert_same(merged(plan, [parts[number] for number in order]), carried_out(plan))

    holds()


@pytest.mark.parametrize("fold", sorted(FOLDS))
def test_merging_is_associative(fold: str, plans: dict[str, list[Plan]]) -> None:
    for plan in plans[fold]:
        chapters = chapters_of(plan)
        for number, one in enumerate(plan.folds):
            if type(one).__name__ != fold:
                continue
            a, b, c = (plan.feed_copy(chapters[i::3])[number] for i in range(3))
            left, right = deepcopy(a), a
            left.merge(deepcopy(b))
            left.merge(deepcopy(c))
            b.merge(c)
            right.merge(b)
            assert_same(plain(left.finish()), plain(right.finish()))


def test_of_equal_scores_the_earlier_slots_are_best_whatever_is_merged_first(plans: dict[str, list[Plan]]) -> None:
    tied = 0
    for plan in plans["TopFold"]:
        for answer in merged(plan, [[chapter] for chapter in reversed(chapters_of(plan))]):
            if "slot" in answer:
                same = np.diff(answer["score"]) == 0
                for column in ("query", "group"):
                    same &= np.diff(answer[column]) == 0
                assert (np.diff(answer["slot"])[same] > 0).all()
                tied += int(same.sum())
    assert tied > 20


def test_an_empty_fold_changes_nothing(plans: dict[str, list[Plan]]) -> None:
    for name in sorted(FOLDS):
        for plan in plans[name][:2]:
            assert_same(merged(plan, [[], chapters_of(plan), []]), carried_out(plan))


class WhenAsked:
    """An executor that calls nothing before somebody wants the result: then other parts are merged already."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any) -> Any:
        class Future:
            def result(self) -> Any:
                return call(*arguments)

        return Future()


@pytest.mark.parametrize("fold", sorted(FOLDS))
def test_an_executor_may_begin_a_part_when_it_likes(fold: str, plans: dict[str, list[Plan]]) -> None:
    for plan, parts in zip(plans[fold], cycle([3, 100]), strict=False):
        assert_same(carried_out(plan, WhenAsked(), parts), carried_out(plan))


def test_threads_answer_every_question_alike(tmp_path: Path) -> None:
    memory = of_vectors(tmp_path / "run", seed=2)
    expected = everything(memory)
    with ThreadPoolExecutor(2) as executor, engine(partial(carry_out, executor=executor, parts=3)):
        assert_same(everything(dualform.load(tmp_path / "run")), expected)


def test_another_process_gives_the_same_answers(plans: dict[str, list[Plan]]) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        for name in sorted(FOLDS):
            for plan in plans[name][:1]:
                assert_same(carried_out(plan, executor, 2), carried_out(plan))


@pytest.mark.parametrize("fold", sorted(FOLDS))
def test_a_plan_can_be_sent_away_and_its_folds_sent_back(fold: str, plans: dict[str, list[Plan]]) -> None:
    for plan in plans[fold]:
        expected, there = carried_out(plan), pickle.loads(pickle.dumps(plan))
        assert_same(carried_out(there), expected)
        back = pickle.loads(pickle.dumps(there.feed_copy(chapters_of(there))))
        whole = empty(plan).folds
        for mine, other in zip(whole, back, strict=True):
            mine.merge(other)
        assert_same([plain(one.finish()) for one in whole], expected)


@pytest.mark.parametrize("fold", sorted(FOLDS))
def test_neither_a_plan_nor_a_fed_fold_takes_the_run_with_it(fold: str, plans: dict[str, list[Plan]]) -> None:
    for plan in plans[fold]:
        for travelling in (plan, plan.feed_copy(chapters_of(plan))):
            assert len(pickle.dumps(travelling)) < 20_000
            assert b"ArrayBlob" not in pickle.dumps(travelling)


class Refusing(Executor):
    def submit(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("a replay was split")


def test_a_replay_is_not_split(tmp_path: Path) -> None:
    memory = of_vectors(tmp_path / "run", adam=True)
    plan = next(plan for plan in caught(lambda: memory.weights("0")) if isinstance(plan.source, Replay))
    assert not plan.source.splits
    with pytest.raises(NotImplementedError, match="a replay is not split"):
        merged(plan, [chapters_of(plan)])

    def ask() -> list[Any]:
        again = dualform.load(tmp_path / "run")
        shares = again.group_weights(by="label").added("2", [0, 1])
        return [again.verify().ok, shares, again.weights("0"), again.without(label=1).weights("2")]

    expected = ask()
    with engine(partial(carry_out, executor=Refusing(), parts=3)):
        assert_same(ask(), expected)


# What a plan says it will do is what it does


def readings(ask: Callable[[], object]) -> list[str]:
    """The folds that were fed while something was asked."""
    return [type(fold).__name__ for plan in caught(ask) for fold in plan.folds]


def test_a_first_question_is_a_scan_and_later_ones_go_by_an_index(tmp_path: Path) -> None:
    memory = of_vectors(tmp_path / "run")
    first, many = memory.attend({"0": torch.ones(1, 5)})["0"], memory.attend({"0": torch.randn(20, 5)})["0"]
    plan = first.plan(Top(10, per="id"), Top(3))
    by_id, single = plan.explain().splitlines()
    assert "id" in by_id
    assert f"a scan of all slots, summed up over {EXAMPLES} training examples" in by_id
    assert "a scan of all slots" in single
    assert "index" not in plan.explain()
    assert readings(plan.answers) == ["TotalFold", "TopFold"]
    plan = many.plan(Top(10, per="id"), Top(3))
    by_id, single = plan.explain().splitlines()
    assert f"an index of {EXAMPLES} training examples" in by_id
    assert "an index of" in single
    assert "scan" not in plan.explain()
    assert readings(plan.answers) == []
    assert [answer.as_arrays()["query"].max() for answer in plan.answers()] == [19, 19]


def test_sizes_of_weights_are_never_answered_by_summed_examples(tmp_path: Path) -> None:
    layer = of_vectors(tmp_path / "run").attend({"0": torch.randn(20, 5)})["0"]
    plan = layer.plan(Top(10, per="id", absolute=True))
    assert "a scan of all slots" in plan.explain()
    assert readings(plan.answers) == ["TotalFold"]


def test_totals_of_a_first_query_are_summed_up_from_its_scores(tmp_path: Path) -> None:
    layer = of_vectors(tmp_path / "run").attend({"0": -torch.ones(1, 5)})["0"]
    for _ in range(3):
        plan = layer.plan(Total("label"))
        assert plan.explain().endswith("a scan of all slots")
        assert readings(lambda: layer.total("label")) == ["TotalFold"]
    assert "a scan, for keys summed up in 3 groups" in layer.plan(Total("label")).explain()
    assert readings(lambda: layer.total("label")) == ["KeySumFold"]
    assert readings(lambda: layer.total("label")) == []


def test_totals_of_many_are_answered_by_keys_that_are_summed_up_once(tmp_path: Path) -> None:
    layer = of_vectors(tmp_path / "run").attend({"0": -torch.ones(3, 5)})["0"]
    assert "a scan of all slots" in layer.plan(Timeline(4)).explain()  # to sum up more groups takes longer
    plan = layer.plan(Total("label"))
    assert "a scan, for keys summed up in 3 groups" in plan.explain()
    assert readings(plan.answers) == ["KeySumFold"]
    plan = layer.plan(Total("label"))
    assert "keys summed up in 3 groups, kept from before" in plan.explain()
    assert readings(plan.answers) == []
    plan = layer.plan(Total("label", absolute=True))
    assert "stored keys once" in plan.explain()
    assert readings(plan.answers) == ["KeyCountFold"]


def test_several_questions_are_one_reading_if_they_have_to_read(tmp_path: Path) -> None:
    layer = of_vectors(tmp_path / "run").attend({"0": torch.ones(1, 5)})["0"]
    plan = layer.plan(Top(3), Top(2, by="label"), Total("id"), Timeline(4))
    assert len(plan.explain().splitlines()) == 4
    assert len(caught(plan.answers)) == 1

"""`benchmarks.peers`: what it measures itself with, what it says of peers that are missing or fail, and our own side.

None of the peers' packages is needed here.
"""

import sys
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from mmap import mmap
from pathlib import Path
from time import sleep

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers import ours, report, training
from benchmarks.peers.asking import Interview
from benchmarks.peers.compare import PEERS, Peer, PeerFailed, compare
from benchmarks.peers.finder import TopExamples, best
from benchmarks.peers.meters import forget_peak, peak, resident, size
from benchmarks.peers.task import LAST, LAYERS, SPARE, Rows, Settings, Task, images_of, write
from benchmarks.recording import Data, Loop

pytestmark = pytest.mark.slow

SMALL = Settings(examples=300, steps=6, turn=2, questions=5, k=4, patience=0.0)
FAILING = "def prepare(task, directory, scope):\n    raise RuntimeError('out of ideas')\n"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Trained, with checkpoints and a recorded run."""
    directory = tmp_path_factory.mktemp("task")
    write(directory, *images_of(None, SMALL), SMALL)
    read = Task.read(directory)
    training.train(read)
    return read


def keys_seen(task: Task) -> dict[str, Tensor]:
    """For each layer, the sum over all visits to each training image of the layer's input, in float64."""
    loop, data = Loop.fresh(), Data(task.images, task.labels, "task")
    layers = {name: loop.model.get_submodule(name) for name in LAYERS}
    sums: dict[str, Tensor] = {}
    for ids in data.batches(task.settings.steps):
        for name, inputs in inputs_of(loop.model, task.images[ids]).items():
            empty = torch.zeros(len(task.images), inputs.shape[1], dtype=torch.float64)
            sums.setdefault(name, empty).index_add_(0, ids, inputs)
        loop.train(data, [ids])
    assert set(sums) == set(layers)
    return sums


def inputs_of(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Each linear layer's input."""
    inputs: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, layer in model.named_children():
            if name in LAYERS:
                inputs[name] = images.double()
            images = layer(images)
    return inputs


@pytest.mark.parametrize(("scope", "layers"), [("all", LAYERS), ("last", (LAST,))])
def test_ours_finds_what_a_dense_sum_finds(task: Task, tmp_path: Path, scope: str, layers: tuple[str, ...]) -> None:
    images, k = task.questions[SPARE:], task.settings.k
    top = ours.prepare(task, tmp_path, scope).top(images, task.predicted[SPARE:], k)
    queries, keys = inputs_of(task.model(), images), keys_seen(task)
    for number, layer in enumerate(layers):
        dense = queries[layer] @ keys[layer].mT  # (questions, examples)
        columns = slice(number * k, (number + 1) * k)
        atol = 2e-3 * float(dense.abs().max())  # keys are kept in float16
        expected = best(dense, k).scores
        torch.testing.assert_close(top.scores[:, columns].double(), expected, rtol=0, atol=atol)
        torch.testing.assert_close(dense.gather(1, top.rows[:, columns]), expected, rtol=0, atol=atol)


def test_contributions_are_asked_for_the_predicted_class(task: Task, tmp_path: Path) -> None:
    images = task.questions[SPARE:]
    finder = ours.prepare(task, tmp_path, "contribution")
    asked = finder.top(images, task.predicted[SPARE:], 4)
    other = finder.top(images, (task.predicted[SPARE:] + 1) % 10, 4)
    assert asked.rows.shape == (5, 4)
    assert not torch.equal(asked.scores, other.scores)


def test_all_trainings_end_with_the_same_weights_and_a_checkpoint_a_turn(task: Task) -> None:
    assert [path.name for path in task.checkpoints] == ["000.pt", "001.pt", "002.pt"]
    loop, data = Loop.fresh(), Data(task.images, task.labels, "task")
    loop.train(data, list(data.batches(task.settings.steps)))
    torch.testing.assert_close(task.model().state_dict(), loop.model.state_dict())


class Certain:
    """Always finds the first training images; keeps a file; says it prepared a part only."""

    note, extrapolated = "certain", 100.0

    def __init__(self, task: Task, directory: Path, scope: str) -> None:
        (directory / scope).write_bytes(bytes(1000))

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        rows = torch.arange(k).expand(len(images), k)
        return TopExamples(rows, torch.ones(rows.shape))


def test_figures_of_a_peer(task: Task, tmp_path: Path) -> None:
    figures = Interview(Certain, task, "kept", tmp_path, resident()).figures()
    assert figures["kept_bytes"] == 1000
    assert figures["preparation"]["cold"] >= 100
    assert figures["first"]["times"] == figures["hundred"]["times"] == 1  # no patience, no repetitions
    agree = task.labels[:4][None] == task.predicted[SPARE:][:, None]
    assert figures["same_class"] == pytest.approx(float(agree.float().mean()))


def test_what_is_quick_is_repeated(task: Task, tmp_path: Path) -> None:
    patient = Task(task.directory, Settings(questions=5, patience=60.0), task.images, task.labels, task.questions)
    figures = Interview(Certain, patient, "kept", tmp_path, resident()).figures()
    assert [figures[part]["times"] for part in ("preparation", "first", "hundred", "further")] == [3] * 4


class Waiting(Certain):
    """Does nothing for a while."""

    def top(self, images: Tensor, classes: Tensor, k: int) -> TopExamples:
        sleep(0.1)
        return super().top(images, classes, k)


def test_a_peer_that_was_kept_waiting_is_marked(task: Task, tmp_path: Path) -> None:
    figures = Interview(Waiting, task, "kept", tmp_path, resident()).figures()
    assert figures["cores"] < 0.4
    row = {**figures, "training_ratio": 1.0, "all_seconds": 1.0, "disk_bytes": 0}
    facts = {**asdict(SMALL), "data": "random", "threads": 1, "torch": torch.__version__}
    costs = {"plain": {"seconds": 1.0}, "memory_mb": 1.0}
    results = {"peers": {"late": row, "busy": {**row, "cores": 0.9}}, "settings": facts, "training": costs}
    assert [line[:12] for line in report(results).splitlines() if "WAITED" in line] == ["late: WAITED"]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the peer that fails: every start of Python with torch takes seconds."""
    start = import_module("benchmarks.peers.compare")._start

    def at_once(module: str, *arguments: str) -> None:
        if arguments[0] == "failing_peer":
            start(module, *arguments)
        else:
            monkeypatch.setattr(sys, "argv", [module, *arguments])
            import_module(module).main()

    monkeypatch.setattr("benchmarks.peers.compare._start", at_once)


@pytest.mark.usefixtures("in_this_process")
def test_peers_that_fail_or_are_missing_are_reported_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_peer.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peers = {
        "failing": Peer("failing_peer", "all"),
        "absent": Peer("no_such_peer", "all", "nosuch"),
        "ours": Peer("benchmarks.peers.ours", "last", training="recorded"),
    }
    results = compare(peers, None, SMALL)
    reason = "it ended with code 1: RuntimeError: out of ideas"
    assert results["peers"]["failing"] == {"not_available": reason}
    absent = results["peers"]["absent"]["not_available"]
    assert absent == "the module 'no_such_peer' is not installed: pip install -c constraints.txt nosuch"
    own = results["peers"]["ours"]
    assert own["all_seconds"] > 0
    assert own["disk_bytes"] > 300_000  # the recorded run is what it keeps
    lines = report(results).splitlines()
    assert f"failing: NOT MEASURED, {reason}" in lines
    assert f"absent: NOT MEASURED, {absent}" in lines
    assert [line for line in lines if line.startswith("ours ")]


def test_a_peer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.compare._TIMEOUT", 0.01)
    with pytest.raises(PeerFailed, match="longer than 0.01 seconds"):
        import_module("benchmarks.peers.compare")._start("benchmarks.peers.asking")


def test_every_peer_has_its_module_and_a_command_to_install_it() -> None:
    assert {peer.package for peer in PEERS.values()} == {None, "captum", "kronfluence", "traker", "dattri"}
    for peer in PEERS.values():
        assert find_spec(peer.module) is not None


def test_batches_are_whole_and_in_order() -> None:
    rows = Rows(torch.arange(10.0)[:, None], torch.arange(10))
    images, classes = (torch.cat(parts) for parts in zip(*rows.loader(4), strict=True))
    torch.testing.assert_close(images[:, 0], torch.arange(10.0))
    torch.testing.assert_close(classes, torch.arange(10))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is that since the start of the process")
def test_the_peak_is_seen_after_it_is_over() -> None:
    forget_peak()
    before = resident()
    with mmap(-1, 80 << 20) as large:  # fresh from the system: a heap might have had as much to spare
        for page in range(0, len(large), 4096):
            large[page] = 1
    assert 70 < peak() - before < 200
    forget_peak()
    assert peak() - resident() < 20


def test_size_is_that_of_all_files_below(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(bytes(10))
    (tmp_path / "b").write_bytes(bytes(5))
    assert size(tmp_path) == 15

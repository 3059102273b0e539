"""Steps that wait to be audited: told of late, but rightly, and none of them lost."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import dualform
from dualform.errors import NotFinite, ParameterChanged, RecordingError, StorageError, UnexplainedGradient
from dualform.recorder import evidence
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step
from tests.recorder.test_bad_loops import clip_by_value

pytestmark = pytest.mark.slow

GOOD = evidence._FIRST_STEPS + 3  # steps: the next one waits for others


def trained(path: Path, then: Callable[[nn.Module, torch.optim.Optimizer, dualform.Recorder], None]) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, path) as recorder:
        for _ in range(GOOD):
            step(model, optimizer)
        then(model, optimizer, recorder)


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
    clip_by_value(model, optimizer)
    for _ in range(evidence._MAX_STEPS):
        step(model, optimizer)


def sync(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
    clip_by_value(model, optimizer)
    step(model, optimizer)
    assert recorder.steps == GOOD + 2
    recorder.sync()


def leave(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
    clip_by_value(model, optimizer)


@pytest.mark.parametrize("then", [go_on, sync, leave])
def test_a_bad_step_is_named_and_those_before_it_are_kept(tmp_path: Path, then: Callable[..., None]) -> None:
    with pytest.raises(UnexplainedGradient, match=rf"step {GOOD}, layer '[02]'"):
        trained(tmp_path / "run", then)
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == GOOD
    assert memory.summary()["ended"] == "UnexplainedGradient"
    assert all(torch.isfinite(weight).all() for weight in memory.weights("0").values())


def test_recording_stays_stopped_where_the_bad_step_was(tmp_path: Path) -> None:
    def ask_again(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        with pytest.raises(UnexplainedGradient):
            sync(model, optimizer, recorder)
        with pytest.raises(RecordingError, match=f"recording stopped at step {GOOD}"):
            step(model, optimizer)

    trained(tmp_path / "run", ask_again)
    assert dualform.load(tmp_path / "run").steps == GOOD


@contextmanager
def watched(recorder: dualform.Recorder) -> Iterator[list[int]]:
    """Look at the number of steps whenever any function is called."""
    seen: list[int] = []
    sys.setprofile(lambda *_: seen.append(recorder.steps))
    try:
        yield seen
    finally:
        sys.setprofile(None)


def test_the_number_of_steps_never_falls_while_steps_wait_and_are_audited(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        with watched(recorder) as seen:
            for _ in range(GOOD + evidence._MAX_STEPS):
                step(model, optimizer)
            recorder.sync()
        assert seen == sorted(seen)
        assert sorted(set(seen)) == list(range(GOOD + evidence._MAX_STEPS + 1))


def test_after_a_bad_step_the_number_of_steps_is_that_of_those_kept(tmp_path: Path) -> None:
    def watch(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        with watched(recorder) as seen, pytest.raises(UnexplainedGradient):
            sync(model, optimizer, recorder)
        most = seen.index(GOOD + 2)
        assert seen[:most] == sorted(seen[:most])
        assert set(seen[most:]) == {GOOD + 2, GOOD}
        assert recorder.steps == GOOD

    trained(tmp_path / "run", watch)


def test_an_error_of_the_loop_comes_first_and_has_a_note_of_the_bad_step(tmp_path: Path) -> None:
    def fail(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        clip_by_value(model, optimizer)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        trained(tmp_path / "run", fail)
    assert f"could not keep the last steps: step {GOOD}, layer" in raised.value.__notes__[0]
    assert dualform.load(tmp_path / "run").summary()["ended"] == "ZeroDivisionError"


def test_an_interrupt_while_the_last_steps_are_audited_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def leave(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        monkeypatch.setattr("dualform.recorder.session.audit", interrupt)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", leave)
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == evidence._FIRST_STEPS
    assert memory.summary()["ended"] == "KeyboardInterrupt"
    monkeypatch.undo()
    model = network(nn.ReLU())
    with record(model, sgd(model), tmp_path / "run", overwrite=True):  # nobody holds it any more
        pass


def test_a_disk_that_has_failed_is_told_of_and_not_hidden_by_a_bad_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(writer: object) -> None:
        raise StorageError("the disk is full")

    def fail(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        clip_by_value(model, optimizer)
        monkeypatch.setattr("dualform.store.RunWriter.check", full)
        step(model, optimizer)

    with pytest.raises(StorageError, match="the disk is full") as raised:
        trained(tmp_path / "run", fail)
    assert not getattr(raised.value, "__notes__", [])


def test_steps_that_wait_are_kept_when_another_error_comes(tmp_path: Path) -> None:
    def change(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        step(model, optimizer)

    with pytest.raises(ParameterChanged, match=f"step {GOOD}"):
        trained(tmp_path / "run", change)
    assert dualform.load(tmp_path / "run").steps == GOOD


def test_what_is_not_finite_in_the_midst_of_good_steps(tmp_path: Path) -> None:
    def diverge(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder) -> None:
        step(model, optimizer)
        optimizer.zero_grad()
        model(batch()[0]).sum().mul(float("nan")).backward()
        optimizer.step()

    with pytest.raises(NotFinite, match=rf"step {GOOD + 1}"):
        trained(tmp_path / "run", diverge)
    assert dualform.load(tmp_path / "run").steps == GOOD + 1


def test_gradients_kept_in_place_are_audited_as_they_were(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(GOOD + 5):
            optimizer.zero_grad(set_to_none=False)
            inputs, targets = batch()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # biases, too: what was seen of them must be a copy
    assert_exact(tmp_path / "run", model, GOOD + 5)


def test_plain_steps_wait_beside_accumulated_ones(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for number in range(GOOD + 20):
            optimizer.zero_grad()
            for _ in range(1 + number % 3):
                inputs, targets = batch()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                if number % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # after each: a factor of its own for every pass
            optimizer.step()
    assert_exact(tmp_path / "run", model, GOOD + 20)


@pytest.mark.parametrize(
    ("slow", "large", "keys_only"), [(True, False, False), (False, True, False), (False, False, True)]
)
def test_slow_and_large_steps_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool, large: bool, keys_only: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr(evidence, "monotonic", lambda: clock[0])
    if large:
        monkeypatch.setattr(evidence, "_MAX_BYTES", 1)
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", values=not keys_only):
        for _ in range(GOOD):
            step(model, optimizer)
        clock[0] += evidence._MAX_SECONDS if slow else 0.0
        with pytest.raises(UnexplainedGradient, match=f"step {GOOD}"):
            clip_by_value(model, optimizer)

"""Loops that cannot be recorded exactly: one clear error, in the step, and nothing lost."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_module

import dualform
from dualform.errors import NotFinite, ParameterChanged, RecordingError, StorageError, UnexplainedGradient
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step


def loop(
    path: Path, model: nn.Module, bad: Callable[[nn.Module, torch.optim.Optimizer], Any], good: int = 2
) -> dualform.Memory:
    """Some good steps, then the bad one, which must raise; the good ones must be there and certified."""
    optimizer = sgd(model)
    try:
        with record(model, optimizer, path):
            for _ in range(good):
                step(model, optimizer)
            bad(model, optimizer)
    finally:
        memory = dualform.load(path)
        assert memory.steps == good
        assert not any(module._forward_hooks for module in model.modules())
        weights = memory.weights(memory.layers[0])  # the steps before can be summed up
        assert all(torch.isfinite(weight).all() for weight in weights.values())
    return memory


def clip_by_value(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    optimizer.step()


def use_functionally(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    assert isinstance(model, nn.Sequential)
    optimizer.zero_grad()
    inputs, targets = batch()
    penalty = F.linear(inputs, model.get_parameter("0.weight")).square().mean()
    (F.cross_entropy(model(inputs), targets) + penalty).backward()
    optimizer.step()


def forget_zero_grad(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    optimizer.step()


def step_without_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()  # the last gradient is still there


def change_gradient(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.add_(torch.randn_like(parameter.grad) * 1e-4)
    optimizer.step()


@pytest.mark.parametrize(
    "bad", [clip_by_value, use_functionally, forget_zero_grad, step_without_backward, change_gradient]
)
def test_a_gradient_that_is_not_explained(tmp_path: Path, bad: Callable[..., None]) -> None:
    with pytest.raises(UnexplainedGradient, match=r"step 2, layer '[02]': the gradient of '[02]\.(weight|bias)'"):
        loop(tmp_path / "run", network(nn.ReLU()), bad)


def test_a_weight_that_is_tied_while_recording(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)).double()

    def tie(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert isinstance(model, nn.Sequential)
        model[2].weight = model[0].weight
        step(model, optimizer)

    with pytest.raises(UnexplainedGradient, match=r"'0\.weight'.* are not the sums"):
        loop(tmp_path / "run", model, tie)


def test_a_parameter_changed_behind_the_optimisers_back(tmp_path: Path) -> None:
    def clamp(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        step(model, optimizer)

    with pytest.raises(ParameterChanged, match=r"step 2: '0\.weight' was changed between two optimiser steps"):
        loop(tmp_path / "run", network(nn.ReLU()), clamp)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stops_the_recording(tmp_path: Path, bad: float) -> None:
    def diverge(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        inputs, targets = batch()
        inputs[0, 0] = bad
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    with pytest.raises(NotFinite, match="step 2, layer '0': the gradient of '0.weight' is NaN or infinite"):
        loop(tmp_path / "run", network(nn.ReLU()), diverge)


def test_recording_stays_stopped_after_an_error(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        with pytest.raises(UnexplainedGradient):
            clip_by_value(model, optimizer)
        with pytest.raises(RecordingError, match="recording stopped at step 1"):
            step(model, optimizer)
        with pytest.raises(RecordingError, match="recording stopped at step 1"):
            recorder.sync()
    assert dualform.load(tmp_path / "run").steps == 1


def tagged(model: nn.Module, optimizer: torch.optim.Optimizer, recorder: dualform.Recorder, **tags: Any) -> None:
    if tags:
        recorder.tag(**tags)
    step(model, optimizer, size=6)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({}, "step 1: tag 'label' is missing"),
        ({"label": torch.zeros(6), "more": 1}, "tag 'more' is new"),
        ({"label": torch.zeros(6)}, "tag 'label' holds float, before it held int"),
        (
            {"label": torch.zeros(5, dtype=torch.int64)},
            r"tag 'label' has shape \(5,\), but layer '0' got rows of shape \(6,\)",
        ),
        ({"label": [object()] * 6}, "must hold numbers or strings"),
        ({"label": 1, "step": 2}, "cannot be called 'step'"),
    ],
)
def test_tags_that_do_not_fit(tmp_path: Path, tags: dict[str, Any], message: str) -> None:
    model = network()
    optimizer = sgd(model)
    with pytest.raises(RecordingError, match=message), record(model, optimizer, tmp_path / "run") as recorder:
        tagged(model, optimizer, recorder, label=torch.arange(6))
        tagged(model, optimizer, recorder, **tags)
    assert dualform.load(tmp_path / "run").steps == 1


def test_no_steps_at_all(tmp_path: Path) -> None:
    model = network()
    with record(model, sgd(model), tmp_path / "run"):
        pass
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().status == "not certifiable"
    assert memory.verify().headline.startswith("NOT CERTIFIABLE: no step was recorded")
    assert (memory.steps, memory.slots("0")) == (0, 0)
    layer = memory.attend(model, batch()[0])["0"]
    assert len(layer.top(3)) == 0
    torch.testing.assert_close(layer.output(), layer.initial())


def test_steps_without_any_gradient(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        optimizer.step()
        step(model, optimizer)
        optimizer.zero_grad()
        optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.steps == 3


class _Unknown(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def test_an_unknown_optimiser_raises_unless_keys_only(tmp_path: Path) -> None:
    model = network()
    unknown = _Unknown(model.parameters())
    expected = "no exact dual form is known for .*_Unknown; choose from torch.optim.SGD, .*or register its algebra"
    with pytest.raises(RecordingError, match=expected):
        record(model, unknown, tmp_path / "run")
    with record(model, unknown, tmp_path / "run", values=False):
        step(model, unknown)
    assert dualform.load(tmp_path / "run").slots("0") == 6


def test_a_line_search_is_refused_by_name_unless_keys_only(tmp_path: Path) -> None:
    """Of each of its steps, the keys of the last loss it tried are recorded."""
    model = network()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> float:
        lbfgs.zero_grad()
        loss = model(torch.randn(6, 5, dtype=torch.float64)).square().mean()
        loss.backward()
        return float(loss.detach())

    with pytest.raises(RecordingError, match="LBFGS has no dual form: how far it goes .*. Pass values=False to record"):
        record(model, lbfgs, tmp_path / "run")
    with record(model, lbfgs, tmp_path / "run", values=False):
        for _ in range(2):
            lbfgs.step(closure)
    assert dualform.load(tmp_path / "run").slots("0") == 12


def test_sparse_gradients_are_refused_by_name(tmp_path: Path) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    sparse = torch.optim.SparseAdam(list(model.parameters()))
    with pytest.raises(RecordingError, match="SparseAdam has no dual form: .* take torch.optim.Adam$"):
        record(model, sparse, tmp_path / "run")


class _Renamed(torch.optim.AdamW):
    pass


class _Overridden(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_an_optimiser_derived_from_torchs_is_that_one_unless_it_overrides_step(tmp_path: Path) -> None:
    model = network()
    optimizer = _Renamed(model.parameters())
    with record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
    assert_exact(tmp_path / "run", model, steps=1)
    with pytest.raises(RecordingError, match=r"test_bad_loops\._Overridden overrides the step of torch.optim.AdamW"):
        record(model, _Overridden(model.parameters()), tmp_path / "other")


def test_other_parallel_models_are_refused(tmp_path: Path) -> None:
    model = network()
    wrapped = nn.DataParallel(model)
    with pytest.raises(RecordingError, match="DataParallel is not supported. What works: one process, or Distributed"):
        record(wrapped, sgd(model), tmp_path / "run")
    store = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        distributed = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(RecordingError, match="DistributedDataParallel around a part of the model"):
            record(nn.Sequential(distributed), sgd(model), tmp_path / "run")
        optimizer = sgd(model)
        with record(distributed, optimizer, tmp_path / "run"):  # by a world of one
            step(distributed, optimizer)
        assert_exact(tmp_path / "run", model, steps=1)
        split = distribute_module(network(), init_device_mesh("cpu", (1,)))
        with pytest.raises(RecordingError, match="the parameters of Linear are split between processes. What works"):
            record(split, sgd(split), tmp_path / "other")
        fully_shard(model)
        with pytest.raises(RecordingError, match="FSDPSequential is not supported. What works"):
            record(model, sgd(model), tmp_path / "other")
    finally:
        torch.distributed.destroy_process_group()


def test_a_parameter_in_two_optimisers(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(RecordingError, match=r"parameter '0\.weight' is in two groups"):
        record(model, [sgd(model), sgd(model)], tmp_path / "run")


def test_an_unknown_precision(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(RecordingError, match="dtype must be one of float16, float32, float64, not 'int8'"):
        record(model, sgd(model), tmp_path / "run", dtype="int8")


def test_about_is_what_json_can_hold(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(RecordingError, match="about must be what JSON can hold"):
        record(model, sgd(model), tmp_path / "run", about={"model": model})
    nested: list[object] = []
    for _ in range(200):
        nested = [nested]
    with pytest.raises(RecordingError, match="about must be what JSON can hold: it is nested more than 100 deep"):
        record(model, sgd(model), tmp_path / "run", about={"nested": nested})
    with record(model, sgd(model), tmp_path / "run", about={"classes": ["a", "b"]}):
        pass
    assert dualform.load(tmp_path / "run").about == {"classes": ["a", "b"]}


def test_names_that_could_not_be_shown(tmp_path: Path) -> None:
    model = network()
    unshown = re.escape(r"a tag cannot be called '\x1b[2J': it could not be shown")
    with pytest.raises(RecordingError, match=unshown), record(model, sgd(model), tmp_path / "run") as recorder:
        recorder.tag(**{"\x1b[2J": 1})
    model.register_buffer("line\nbreak", torch.zeros(1))
    with pytest.raises(StorageError, match=re.escape(r"the name 'state/buffers/line\nbreak' cannot be shown")):
        record(model, sgd(model), tmp_path / "other").__enter__()


def test_a_recorder_is_entered_once(tmp_path: Path) -> None:
    model = network()
    recorder = record(model, sgd(model), tmp_path / "run")
    with recorder:
        pass
    with pytest.raises(RecordingError, match="once"):
        recorder.__enter__()
    with pytest.raises(RecordingError, match="with block"):
        record(model, sgd(model), tmp_path / "other").sync()
    with pytest.raises(RecordingError, match="with block"):
        record(model, sgd(model), tmp_path / "other").tag(label=1)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    model = network()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file"):
        record(model, sgd(model), tmp_path / "file").__enter__()
    with pytest.raises(StorageError, match="cannot use"):
        record(model, sgd(model), tmp_path / "file" / "run").__enter__()
    assert not model[0]._forward_hooks


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no directory here that even root cannot write to")
def test_a_directory_that_cannot_be_written_to() -> None:
    model = network()
    with pytest.raises(StorageError, match=r"cannot use /sys/kernel/dualform for a run"):
        record(model, sgd(model), Path("/sys/kernel/dualform")).__enter__()
    assert not model[0]._forward_hooks


def test_a_disk_that_fills_up_is_an_error_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    optimizer = sgd(model)
    monkeypatch.setattr("dualform.recorder.session.chapter_bytes", lambda state: 2_000)
    sealed = 0

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def train() -> None:
        nonlocal sealed
        with record(model, optimizer, tmp_path / "run") as recorder:
            for _ in range(10):
                step(model, optimizer)
            sealed = recorder.sync()
            monkeypatch.setattr(os, "fsync", full)
            for _ in range(1_000):
                step(model, optimizer)

    with pytest.raises(StorageError, match=r"cannot write .*shard-\d+.safetensors: No space left on device"):
        train()
    monkeypatch.undo()
    memory = dualform.load(tmp_path / "run")
    assert memory.steps == sealed == 10
    assert memory.verify().ok
    assert "not closed" in repr(memory)
    assert not list((tmp_path / "run").glob("*.tmp"))

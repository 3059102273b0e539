"""Which call a row belongs to, when tags come early or late, what is left on the model, and what cannot be proven."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from dualform.nn import LSTM
from dualform.store import InMemory
from tests.recorder.brute_force import recorded_tags
from tests.recorder.loops import record, sgd


class TimeFirst(nn.Module):
    """Batch first outside, time first inside; how often it was called is a buffer, in evaluation, too."""

    calls: Tensor

    def __init__(self, *middle: nn.Module) -> None:
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(4, 4), nn.Sequential(*middle), nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        x = self.middle(self.body(inputs.transpose(0, 1)).cumsum(0).tanh())  # (time, batch, 4)
        out: Tensor = self.head(x).transpose(0, 1)
        return out


def step(optimizer: torch.optim.Optimizer, out: Tensor) -> None:
    optimizer.zero_grad()
    out.square().sum().backward()
    optimizer.step()


BY_TIME = [10, 11, 12] * 5  # the ids of (time, batch) rows


def ids() -> Tensor:
    return torch.arange(3) + 10


def recorded(model: nn.Module, forward: Callable[[Tensor], Tensor], shape: tuple[int, ...] = (3, 5, 4)) -> InMemory:
    """A run of two steps, tagged by example."""
    run, optimizer = InMemory(), sgd(model)
    with record(model, optimizer, run) as recorder:
        for _ in range(2):
            recorder.tag(id=ids())
            step(optimizer, forward(torch.randn(shape)))
    assert recorder.notes == []
    return run


# Calls


def test_a_part_of_the_model_is_called() -> None:
    """As trainers do, whose model is never called itself."""
    module = nn.Module()
    module.net = TimeFirst()
    run = recorded(module, module.net)
    assert recorded_tags(run, "net.body") == 2 * BY_TIME


def test_layers_are_called_themselves() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 3)])
    run = recorded(model, lambda x: model[1](model[0](x).tanh().transpose(0, 1)))
    assert recorded_tags(run, "0") == 2 * sorted(BY_TIME)
    assert recorded_tags(run, "1") == 2 * BY_TIME


def test_a_forward_pass_that_fails_does_not_count() -> None:
    model, run = TimeFirst(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=ids())
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5, 7))
        step(optimizer, model(torch.randn(3, 5, 4)))
    assert recorded_tags(run, "body") == BY_TIME


def test_a_forward_pass_that_was_interrupted_does_not_count() -> None:
    class Interrupted(nn.Module):
        interrupts = False

        def forward(self, inputs: Tensor) -> Tensor:
            if self.interrupts:
                raise KeyboardInterrupt
            return inputs

    middle, run = Interrupted(), InMemory()
    model = TimeFirst(middle)
    optimizer = sgd(model)
    recorder = record(model, optimizer, run).start()
    recorder.tag(id=ids())
    step(optimizer, model(torch.randn(3, 5, 4)))
    middle.interrupts = True
    recorder.tag(id=ids() + 100)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(3, 5, 4))
    middle.interrupts = False
    recorder.tag(id=ids())
    step(optimizer, model(torch.randn(3, 5, 4)))
    recorder.stop()
    assert recorded_tags(run, "body") == 2 * BY_TIME


def test_a_model_that_trains_itself_is_not_trained_by_an_experiment() -> None:
    class SelfTrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 2)
            self.optimizer = sgd(self.net)

        def forward(self, inputs: Tensor) -> Tensor:
            for _ in range(2):
                step(self.optimizer, self.net(inputs))
            out: Tensor = self.net(inputs)
            return out

    plain, model, run, inputs = SelfTrained(), SelfTrained(), InMemory(), torch.randn(3, 4)
    plain(inputs)
    with record(model, model.optimizer, run) as recorder:
        recorder.tag(id=ids())
        model(inputs)
    assert "steps in its own forward pass" in recorder.notes[0]
    assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert recorded_tags(run, "net") == 2 * [10, 11, 12]


def test_transforms_of_the_model_are_left_alone() -> None:
    model = TimeFirst()

    def forward(inputs: Tensor) -> Tensor:
        torch.func.vmap(model)(inputs[:, None])
        torch.func.jacrev(model.body)(inputs[:2])
        out: Tensor = model(inputs)
        return out

    run = recorded(model, forward)
    assert recorded_tags(run, "body") == 2 * BY_TIME


def test_gates_of_an_lstm() -> None:
    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = LSTM(4, 5, num_layers=2), nn.Linear(5, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(inputs.transpose(0, 1))[0]).transpose(0, 1)
            return out

    model = Gates()
    run = recorded(model, model)
    for layer in ("lstm.l0", "lstm.l1", "head"):
        assert recorded_tags(run, layer) == 2 * BY_TIME


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_encoder(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    run, optimizer = InMemory(), sgd(model)
    with record(model, optimizer, run, layers="*.linear?") as recorder:
        recorder.tag(id=ids())
        step(optimizer, model(torch.randn(3, 3, 4), mask=mask))  # as many tokens as examples
    expected = [10, 10, 10, 11, 11, 11, 12, 12, 12] if batch_first else [10, 11, 12] * 3
    assert recorded_tags(run, "layers.1.linear1") == expected


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_checkpoints(reentrant: bool, whole: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TimeFirst()
            self.outer = nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            x = self.outer(inputs)
            if whole:
                out: Tensor = self.inner(x)
            else:
                out = checkpoint(self.inner, x, use_reentrant=reentrant)
            return out

    model = Checkpointed()

    def forward(inputs: Tensor) -> Tensor:
        if not whole:
            return model(inputs)  # type: ignore[no-any-return]
        return checkpoint(model, inputs.requires_grad_(), use_reentrant=reentrant)  # type: ignore[no-any-return]

    run = recorded(model, forward)
    assert recorded_tags(run, "inner.body") == 2 * BY_TIME
    assert recorded_tags(run, "outer") == 2 * sorted(BY_TIME)


def test_checkpoints_of_several_micro_batches() -> None:
    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TimeFirst()

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, inputs, use_reentrant=True)
            return out

    model, run = Segment(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        for part in range(2):
            recorder.tag(id=ids() + 10 * part)
            model(torch.randn(3, 5, 4, requires_grad=True)).sum().backward()
        optimizer.step()
    assert recorded_tags(run, "inner.body") == BY_TIME + [one + 10 for one in BY_TIME]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_compiled_model(wrapped: bool) -> None:
    model = TimeFirst(nn.Linear(4, 4))
    compiled: Any = torch.compile(model, backend="eager")
    run, optimizer = InMemory(), sgd(model)
    with record(compiled if wrapped else model, optimizer, run) as recorder:
        for _ in range(2):
            recorder.tag(id=ids())
            step(optimizer, compiled(torch.randn(3, 5, 4)))
    assert recorder.notes == []
    for layer in ("body", "middle.0", "head"):
        assert recorded_tags(run, layer) == 2 * BY_TIME


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model = TimeFirst(nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            out: Tensor = model(inputs)
        return out.float()

    run = recorded(model, forward)
    assert recorded_tags(run, "middle.1") == 2 * BY_TIME


def test_a_late_tag_of_a_part_that_only_autocast_can_call() -> None:
    model, run = nn.ModuleList([nn.Linear(4, 4), TimeFirst()]), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            out = model[1](model[0](torch.randn(3, 5, 4)))
        recorder.tag(id=ids())
        step(optimizer, out.float())
    assert recorder.notes == []
    assert recorded_tags(run, "1.body") == BY_TIME


def test_a_large_batch() -> None:
    model, run = TimeFirst(), InMemory()
    optimizer = sgd(model, lr=1e-4)
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=torch.arange(700))
        step(optimizer, model(torch.randn(700, 2, 4)))
    assert recorded_tags(run, "head") == 2 * list(range(700))


# Late tags


def micro_batches(model: nn.Module, run: InMemory, *orders: str, tags: Callable[[int], Any] | None = None) -> None:
    """A step for each order of forward passes (F), backward passes (B) and tags (T)."""
    optimizer, passes = sgd(model), 0
    with record(model, optimizer, run) as recorder:
        for order in orders:
            outputs = []
            optimizer.zero_grad()
            for letter in order:
                if letter == "F":
                    outputs.append(model(torch.randn(3, 5, 4)))
                elif letter == "B":
                    outputs.pop().square().sum().backward()
                else:
                    recorder.tag(id=ids() + 10 * passes)
                    passes += 1
            optimizer.step()


@pytest.mark.parametrize("order", ["FTB", "FBT", "TFB"])
def test_a_tag_after_the_only_forward_pass_is_of_that_pass(order: str) -> None:
    model, run = TimeFirst(), InMemory()
    micro_batches(model, run, order, order)
    assert recorded_tags(run, "body") == [*BY_TIME, *(one + 10 for one in BY_TIME)]


@pytest.mark.parametrize("order", ["FTBFTB", "FBTFBT", "TFBTFB"])
def test_tags_of_micro_batches(order: str) -> None:
    model, run = TimeFirst(), InMemory()
    micro_batches(model, run, order)
    assert recorded_tags(run, "body") == [*BY_TIME, *(one + 10 for one in BY_TIME)]


@pytest.mark.parametrize(
    ("order", "problem"), [("FTBFB", "some have none"), ("FFTBB", "one recorder.tag follows several")]
)
def test_tags_that_come_too_late(order: str, problem: str) -> None:
    with pytest.raises(RecordingError, match=f"{problem}.*call recorder.tag before every forward pass"):
        micro_batches(TimeFirst(), InMemory(), order)


def test_a_forward_pass_before_the_loop_does_no_harm() -> None:
    model, run = TimeFirst(), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        kept = model(torch.randn(1, 2, 4))  # never followed back
        recorder.tag(id=ids())
        step(optimizer, model(torch.randn(3, 5, 4)))
        assert kept.requires_grad
    assert recorded_tags(run, "body") == BY_TIME


def test_a_pass_through_several_modules_has_one_late_tag() -> None:
    model, run = nn.ModuleList([TimeFirst(), nn.Linear(3, 2)]), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        out = model[1](model[0](torch.randn(3, 5, 4)))
        recorder.tag(id=ids())
        step(optimizer, out)
    assert recorded_tags(run, "0.body") == BY_TIME
    assert recorded_tags(run, "1") == sorted(BY_TIME)


# What is left on the model


def train(model: nn.Module, run: InMemory | None) -> list[Tensor]:
    """All that a training may change, after each of its steps."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    optimizer, trace = sgd(model), []
    recorder = None if run is None else record(model, optimizer, run)
    if recorder is not None:
        recorder.start()
    for size in (3, 4, 3, 2):
        inputs = torch.randn(size, 5, 4)
        if recorder is not None:
            recorder.tag(id=torch.arange(size))
        with torch.autocast("cpu", torch.bfloat16, enabled=size == 4):
            out = model(inputs)
        optimizer.zero_grad()
        out.float().square().sum().backward()
        trace += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        trace += [value.clone() for value in model.state_dict().values()]
        trace += [torch.rand(2), torch.tensor([random.random(), np.random.random()]), torch.tensor(model.training)]
    if recorder is not None:
        recorder.stop()
    return trace


class Norm(nn.Module):
    """A BatchNorm over (time, batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs.flatten(0, 1)).view_as(inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_recorded_training_is_the_same_bit_by_bit(frozen: bool) -> None:
    def make() -> TimeFirst:
        torch.manual_seed(3)
        model = TimeFirst(nn.Dropout(0.5), Norm(4), nn.Linear(4, 4))
        if frozen:
            model.middle[1].eval()
        return model

    plain, recorded_one, run = make(), make(), InMemory()
    for one, other in zip(train(plain, None), train(recorded_one, run), strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert recorded_one.middle[1].training is not frozen
    assert recorded_tags(run, "middle.2")[-10:] == [0, 1] * 5


def test_gradients_of_others_are_left_alone() -> None:
    model, run = TimeFirst(), InMemory()
    optimizer, calls = sgd(model), []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=ids())
        out = model(torch.randn(3, 5, 4))
        assert all((p.grad == 1).all() for p in model.parameters() if p.grad is not None)
        assert calls == []
        step(optimizer, out)
    assert recorded_tags(run, "head") == BY_TIME
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# How often


def test_experiments_are_made_for_tags_only_and_once_for_a_shape() -> None:
    model, forward_calls = TimeFirst(), []
    hook = model.body.register_forward_hook(lambda *_: forward_calls.append(1))
    optimizer = sgd(model)

    def calls_of(recorder: dualform.Recorder, size: int, **tags: Any) -> int:
        forward_calls.clear()
        recorder.tag(**tags)
        step(optimizer, model(torch.randn(size, 5, 4)))
        return len(forward_calls)

    with record(model, optimizer, InMemory()) as recorder:
        assert calls_of(recorder, 3) == 1
    with record(model, optimizer, InMemory()) as recorder:
        assert calls_of(recorder, 3, task="a") == 1
    with record(model, optimizer, InMemory(), provenance=False) as recorder:
        assert calls_of(recorder, 5, id=torch.arange(25).view(5, 5)) == 1
    with record(model, optimizer, InMemory()) as recorder:
        assert calls_of(recorder, 3, id=ids()) > 1
        assert calls_of(recorder, 3, id=ids()) == 1
        assert calls_of(recorder, 4, id=torch.arange(4)) > 1
        assert calls_of(recorder, 6, id=torch.arange(6)) > 1
        assert [calls_of(recorder, size, id=torch.arange(size)) for size in (7, 2, 1)] == [
            1,
            1,
            1,
        ]  # by then it is clear
    hook.remove()

"""Rows that move with the data, layers that fit no reading, and what could not be proven: said, or raised by name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.store import InMemory
from tests.recorder.brute_force import recorded_tags
from tests.recorder.loops import record, sgd

BATCH, TIME = 3, 5


def step(optimizer: torch.optim.Optimizer, out: Tensor) -> None:
    optimizer.zero_grad()
    out.square().sum().backward()
    optimizer.step()


def named_inputs(batch: int = BATCH, time: int = TIME) -> Tensor:
    """Tokens whose first feature is the number of their example."""
    inputs = torch.randn(batch, time, 4)
    inputs[:, :, 0] = torch.arange(batch)[:, None]
    return inputs


class Watched(nn.Module):
    """Notes which examples the rows of its layers are of, as their first feature says."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[int]] = {}

    def watch(self, *layers: str) -> None:
        for layer in layers:
            self.get_submodule(layer).register_forward_pre_hook(lambda _, args, layer=layer: self._note(layer, args[0]))

    def _note(self, layer: str, keys: Tensor) -> None:
        self.rows[layer] = self.rows.get(layer, []) + keys.detach().reshape(-1, 4)[:, 0].long().tolist()


class Experts(Watched):
    """Routes each token to one of two experts; in training, with noise."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.router, self.experts, self.noise = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), noise
        self.watch("experts.0", "experts.1")

    def forward(self, inputs: Tensor) -> Tensor:
        self.rows = {}
        flat = inputs.flatten(0, 1)
        scores = self.router(flat)
        if self.training:
            scores = scores + self.noise * torch.randn_like(scores)
        chosen, out = scores.argmax(1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, mine, expert(flat[mine]) * scores[mine, number : number + 1])
        return out.view_as(inputs)


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_routed_experts(noise: float) -> None:
    model, run, expected = Experts(noise), InMemory(), []
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, run) as recorder:
        for _ in range(4):
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(named_inputs()))
            expected.append(model.rows)
    for layer in ("experts.0", "experts.1"):
        assert recorded_tags(run, layer) == [row for rows in expected for row in rows.get(layer, [])]
    assert recorded_tags(run, "router") == 4 * sorted(list(range(BATCH)) * TIME)


def test_an_expert_that_had_no_rows_at_first() -> None:
    model, run, expected = Experts(), InMemory(), []
    optimizer = sgd(model, lr=0.01)
    bias: Any = model.router.bias
    with torch.no_grad():
        bias.copy_(torch.tensor([1e4, -1e4]))
    model.router.requires_grad_(False)
    with record(model, optimizer, run, layers="experts.?") as recorder:
        for number in range(4):
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(named_inputs()))
            expected.append(model.rows)
            if number == 1:
                with torch.no_grad():
                    bias.zero_()
    for layer in ("experts.0", "experts.1"):
        assert recorded_tags(run, layer) == [row for rows in expected for row in rows.get(layer, [])]


class Sorted(Watched):
    """Sorts the examples of a batch by what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.watch("layer")

    def forward(self, inputs: Tensor) -> Tensor:
        self.rows = {}
        order = inputs[:, :, 1].sum(1).argsort()
        out: Tensor = self.layer(inputs[order])[order.argsort()]
        return out.cumsum(1)


@pytest.mark.parametrize("already", [True, False])
def test_examples_that_are_sorted(already: bool) -> None:
    model, run, expected = Sorted(), InMemory(), []
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, run) as recorder:
        for number in range(4):
            inputs = named_inputs()
            if already and number == 0:
                inputs[:, 0, 1] += 100 * torch.arange(BATCH)
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(inputs))
            expected += model.rows["layer"]
    assert recorded_tags(run, "layer") == expected


class Chosen(Watched):
    """Looks at some tokens only, as masked language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.watch("head")

    def forward(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        self.rows = {}
        return self.body(inputs).cumsum(1), self.head(inputs[chosen]).sum()


def test_chosen_tokens_that_only_the_loss_sees_have_no_tag_and_that_is_said() -> None:
    model, run = Chosen(), InMemory()
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=torch.arange(BATCH))
        hidden, loss = model(named_inputs(), torch.rand(BATCH, TIME) < 0.5)
        step(optimizer, hidden.square().mean() + loss)
    assert set(recorded_tags(run, "head")) == {None}
    assert recorded_tags(run, "body") == sorted(list(range(BATCH)) * TIME)
    assert any("'head'" in note and "no tags" in note for note in recorder.notes)


def test_a_layer_that_only_training_calls() -> None:
    class Auxiliary(Watched):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.more = nn.Linear(4, 4), nn.Linear(4, 4)
            self.watch("more")

        def forward(self, inputs: Tensor) -> Tensor:
            self.rows = {}
            out: Tensor = self.body(inputs).cumsum(1)
            if self.training:
                out = out + self.more(inputs.transpose(0, 1)).transpose(0, 1)
            return out

    model, run, expected = Auxiliary(), InMemory(), []
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, run) as recorder:
        for _ in range(3):
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(named_inputs()))
            expected += model.rows["more"]
    assert recorded_tags(run, "more") == expected == 3 * list(range(BATCH)) * TIME


def test_a_cell_that_is_called_token_by_token() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.table, self.head = nn.Linear(8, 4), nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            state = torch.zeros(len(inputs), 4)
            for token in (inputs + self.table(torch.arange(inputs.shape[1]))).unbind(1):
                state = self.cell(torch.cat([token, state], 1)).tanh()
            out: Tensor = self.head(state)
            return out

    model, run, expected = Unrolled(), InMemory(), []
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, run) as recorder:
        for time in (2, 3, 4, 6, 5):
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(torch.randn(BATCH, time, 4)))
            expected += time * list(range(BATCH))
    assert recorded_tags(run, "cell") == expected
    assert recorded_tags(run, "table") == [None] * (2 + 3 + 4 + 6 + 5)


@pytest.mark.parametrize("alike", [True, False])
def test_outputs_that_do_not_differ_between_examples(alike: bool) -> None:
    """Since all examples are the same, or the last layer is still zero."""

    class TimeFirst(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self[1](self[0](inputs.transpose(0, 1)).cumsum(0).tanh()).transpose(0, 1)
            return out

    model, run, inputs = TimeFirst(nn.Linear(4, 4), nn.Linear(4, BATCH)), InMemory(), torch.randn(BATCH, TIME, 4)
    if not alike:
        for parameter in model[1].parameters():
            nn.init.zeros_(parameter)
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(BATCH))
            step(optimizer, model(inputs[:1].expand_as(inputs) if alike else inputs) - 1)
    for layer in ("0", "1"):
        assert recorded_tags(run, layer) == 2 * TIME * list(range(BATCH))


def test_keys_and_errors_of_different_examples_raise_by_name() -> None:
    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.others = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            other = self.others(inputs.roll(1, 0))
            out: Tensor = self.own(inputs) + (other - other.detach())  # of which the output shows nothing
            return out

    model = Rolled()
    optimizer = sgd(model)
    with (
        pytest.raises(RecordingError, match=r"layer 'others' has rows of shape \(5,\), from a batch of 5.*exclude="),
        record(model, optimizer, InMemory()) as recorder,
    ):
        recorder.tag(id=torch.arange(5))
        step(optimizer, model(torch.randn(5, 4)))


def test_rows_in_an_odd_order_that_is_always_the_same() -> None:
    class Rolled(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self[0](inputs.roll(1, 0)).roll(-1, 0)
            return out

    model, run = Rolled(nn.Linear(4, 2)), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(4))
            step(optimizer, model(torch.randn(4, 4)))
    assert recorded_tags(run, "0") == 2 * [3, 0, 1, 2]


def test_a_tag_that_fits_nothing_raises_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    optimizer = sgd(model)
    message = r"tag 'id' has shape \(7,\), but layer '0' got rows of shape \(3, 5\) from a batch of 3"
    with pytest.raises(RecordingError, match=message), record(model, optimizer, InMemory()) as recorder:
        recorder.tag(id=torch.arange(7))
        step(optimizer, model(torch.randn(3, 5, 4)))


def test_a_merged_memory_needs_a_tag_for_every_row() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shared = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.body(inputs) + self.shared(torch.eye(4)[: inputs.shape[1]])
            return out.cumsum(1)

    model = Table()
    optimizer = sgd(model)
    with (
        pytest.raises(RecordingError, match="layer 'shared' has rows without a tag 'id'.*exclude="),
        record(model, optimizer, InMemory(), merge="id") as recorder,
    ):
        recorder.tag(id=torch.arange(3))
        step(optimizer, model(torch.randn(3, 2, 4)))


# What could not be proven is said, and read by shape


class OnlyLoss(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self[0](inputs).square().mean()
        return out


class Random(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self[0](inputs)
        return out + torch.randn_like(out)


class Centred(nn.Sequential):
    """No output is one example's."""

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self[0](inputs)
        return out.sum(0) * torch.linspace(1, 2, len(inputs))[:, None]


@pytest.mark.parametrize(
    ("model", "size", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 2)), 1, "a batch of one"),
        (OnlyLoss(nn.Linear(4, 2)), 3, "a loss only"),
        (Random(nn.Linear(4, 2)), 3, "two equal calls in evaluation differ"),
        (Centred(nn.Linear(4, 2)), 3, "no output shows which axis is the batch"),
    ],
)
def test_what_was_not_proven_is_said_once(model: nn.Module, size: int, reason: str) -> None:
    run, optimizer = InMemory(), sgd(model, lr=1e-3)
    with record(model, optimizer, run) as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(size))
            step(optimizer, model(torch.randn(size, 4)))
    (note,) = recorder.notes
    assert reason in note
    assert recorded_tags(run, "0") == 2 * list(range(size))


def test_an_argument_that_cannot_be_passed_twice() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs: Tensor, cache: Any) -> Tensor:
            cache.seen.append(inputs)
            out: Tensor = self.layer(inputs)
            return out

    class Cache:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

    model, cache = Cached(), Cache()
    optimizer = sgd(model)
    with record(model, optimizer, InMemory()) as recorder:
        recorder.tag(id=torch.arange(3))
        step(optimizer, model(torch.randn(3, 4), cache))
    assert len(cache.seen) == 1
    assert "class Cache" in recorder.notes[0]


def test_what_cannot_be_proven_is_not_tried_for_every_shape() -> None:
    model, calls = Centred(nn.Linear(4, 2)), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    optimizer = sgd(model, lr=1e-4)
    with record(model, optimizer, InMemory()) as recorder:
        for size in range(2, 8):
            calls.clear()
            recorder.tag(id=torch.arange(size))
            step(optimizer, model(torch.randn(size, 4)))
    assert len(recorder.notes) == len(calls) == 1


def test_experts_behind_a_norm_of_the_batch_raise_by_name() -> None:
    """In training mode, a row's error is of the whole batch; in evaluation mode, its rows are others."""

    class Normed(Experts):
        def __init__(self) -> None:
            super().__init__(noise=5.0)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.norm(super().forward(inputs).flatten(0, 1)).view_as(inputs)  # type: ignore[no-any-return]

    model = Normed()
    optimizer = sgd(model)
    with (
        pytest.raises(RecordingError, match=r"layer 'experts\.\d' got rows .*BatchNorm.*exclude="),
        record(model, optimizer, InMemory()) as recorder,
    ):
        recorder.tag(id=torch.arange(BATCH))
        step(optimizer, model(named_inputs()))

"""Tags are right however a model lays its rows out, and nothing of the proof is left on the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dualform.store import InMemory
from tests.recorder.brute_force import changed_rows, recorded_tags
from tests.recorder.loops import record, sgd

WIDTH = 4


@dataclass(frozen=True)
class Shape:
    """Of a model: how its input and its output lie, and what its blocks do with their rows."""

    batch: int
    time: int
    time_first: bool
    blocks: tuple[str, ...]
    head: str


class Mixed(nn.Module):
    """Blocks whose layers have their rows in different orders; tokens see those before them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(
            nn.Embedding(9, WIDTH) if block.startswith("positions") else nn.Linear(WIDTH, WIDTH)
            for block in shape.blocks
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.transpose(0, 1) if self.shape.time_first else inputs  # (batch, time, width)
        x = x.cumsum(1)
        for name, layer in zip(self.shape.blocks, self.blocks, strict=True):
            x = (x + BLOCKS[name](layer, x)).tanh()
        heads = {
            "tokens": lambda: self.head(x),
            "time first": lambda: self.head(x.transpose(0, 1)),
            "flat": lambda: self.head(x.flatten(0, 1)),
            "last": lambda: self.head(x[:, -1]),
        }
        out: Tensor = heads[self.shape.head]()
        return out


def windows(layer: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = layer(x.reshape(-1, 1 + (x.shape[1] + 1) % 2, WIDTH)).view_as(x)  # of two tokens, if that fits
    return out


BLOCKS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "plain": lambda layer, x: layer(x),
    "time first": lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1),
    "flat": lambda layer, x: layer(x.flatten(0, 1)).view_as(x),
    "flat time first": lambda layer, x: (
        layer(x.transpose(0, 1).flatten(0, 1)).view(x.shape[1], len(x), -1).transpose(0, 1)
    ),
    "repeat_interleave": lambda layer, x: layer(x.repeat_interleave(2, 0)).view(len(x), 2, *x.shape[1:]).mean(1),
    "repeat": lambda layer, x: layer(x.repeat(2, 1, 1)).view(2, *x.shape).mean(0),
    "positions (T,)": lambda layer, x: layer(torch.arange(x.shape[1])).expand_as(x),
    "positions (1, T)": lambda layer, x: layer(torch.arange(x.shape[1])[None]).expand_as(x),
    "positions (B, T)": lambda layer, x: layer(torch.arange(x.shape[1]).expand(x.shape[:2])),
    "windows": windows,
    "pooled": lambda layer, x: layer(x[:, 0])[:, None].expand_as(x),
}
shapes = st.builds(
    Shape,
    st.integers(2, 4),
    st.integers(2, 4),
    st.booleans(),
    st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["tokens", "time first", "flat", "last"]),
)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, out: Tensor) -> None:
    optimizer.zero_grad()
    (out * torch.randn_like(out)).sum().backward()
    optimizer.step()


@settings(max_examples=40)
@given(shapes, st.integers(0, 999))
def test_tags_are_those_of_the_example_that_changes_a_row(shape: Shape, seed: int) -> None:
    torch.manual_seed(seed)
    model, run = Mixed(shape), InMemory()
    inputs = torch.randn(shape.batch, shape.time, WIDTH)
    numbers = torch.arange(shape.batch * shape.time).view(shape.batch, shape.time)

    def laid_out(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1) if shape.time_first else tensor

    def changed(number: int) -> Callable[[], Any]:
        other = inputs.clone()
        other[number // shape.time, number % shape.time] += 1
        return lambda: model(laid_out(other))

    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    of_tokens = changed_rows(
        model, layers, lambda: model(laid_out(inputs)), [changed(i) for i in range(numbers.numel())]
    )
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=torch.arange(shape.batch) + 10, token=laid_out(numbers))
        step(model, optimizer, model(laid_out(inputs)))
    assert recorder.notes == []
    for layer in layers:
        expected = [{number // shape.time + 10 for number in row} for row in of_tokens[layer]]
        found = recorded_tags(run, layer)
        if any(expected):  # the positions of a table, one for each example, change with nothing
            assert [{tag} - {None} for tag in found] == expected
        per_example = len(found) / shape.batch
        tokens = [max(row) if row and per_example == shape.time else None for row in of_tokens[layer]]
        if any(expected):
            assert recorded_tags(run, layer, "token") == tokens


def test_positions_that_are_given_to_each_example_are_its_own() -> None:
    shape = Shape(3, 4, True, ("positions (B, T)", "positions (1, T)"), "tokens")
    model, run = Mixed(shape), InMemory()
    optimizer = sgd(model)
    with record(model, optimizer, run) as recorder:
        recorder.tag(id=torch.arange(3))
        step(model, optimizer, model(torch.randn(4, 3, WIDTH)))
    assert recorded_tags(run, "blocks.0") == [0] * 4 + [1] * 4 + [2] * 4
    assert recorded_tags(run, "blocks.1") == [None] * 4

"""Selections and groups against a loop over the slots that were recorded."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dualform
from dualform.slots import ByTags, ByTime, OneGroup, Selection, Slots, condition
from dualform.store import Run

COLOURS = ("red", "green", "blue")
Row = tuple[int, int, str]  # step, label, colour


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[tuple[int, str]]], list[bool]]:
    """The tags of each slot, batch by batch, and after which steps a chapter was sealed."""
    tags = st.tuples(st.integers(-3, 200), st.sampled_from(COLOURS))
    batches = draw(st.lists(st.lists(tags, min_size=1, max_size=5), min_size=1, max_size=6))
    return batches, draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))


def recorded(path: Path, batches: list[list[tuple[int, str]]], sealed: list[bool]) -> tuple[Slots, list[Row]]:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with dualform.record(nn.Sequential(layer), optimizer, path) as recorder:
        for batch, seal in zip(batches, sealed, strict=True):
            recorder.tag(label=[label for label, _ in batch], colour=[colour for _, colour in batch])
            optimizer.zero_grad()
            layer(torch.randn(len(batch), 2)).sum().backward()
            optimizer.step()
            if seal:
                recorder.sync()
    run = Run(path)
    return Slots(run, run.layers["0"]), [(step, *tags) for step, batch in enumerate(batches) for tags in batch]


def selected(slots: Slots, selection: Selection) -> list[int]:
    blocks = slots.stream(slots.chapters(selection), selection)
    return [slot for block in blocks for slot in block.slots.tolist()]


@given(runs(), st.data())
def test_a_selection_is_what_a_loop_would_keep(run: Any, data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        slots, rows = recorded(Path(directory) / "run", *run)
        until = data.draw(st.integers(0, len(run[0])))
        labels = data.draw(st.sets(st.sampled_from([label for _, label, _ in rows])))
        colours = data.draw(st.sets(st.sampled_from([colour for _, _, colour in rows])))
        inverted = data.draw(st.booleans())
        wanted = condition(slots.run, {"label": sorted(labels), "colour": sorted(colours)}, inverted)
        expected = [
            slot
            for slot, (step, label, colour) in enumerate(rows)
            if step < until and (label in labels and colour in colours) != inverted
        ]
        assert selected(slots, Selection(until).narrowed(wanted)) == expected
        step = condition(slots.run, {"step": range(until)}, inverted=False)
        assert selected(slots, Selection(len(run[0])).narrowed(step)) == selected(slots, Selection(until))


@given(runs(), st.sampled_from([("label",), ("colour",), ("colour", "label"), ("label", "colour")]), st.integers(1, 9))
def test_groups_are_those_of_a_loop(run: Any, by: tuple[str, ...], bins: int) -> None:
    with TemporaryDirectory() as directory:
        slots, rows = recorded(Path(directory) / "run", *run)
        everything = Selection(len(run[0]))
        blocks = list(slots.stream(slots.chapters(everything), everything))
        places = {"label": 1, "colour": 2}
        values = [tuple(row[places[name]] for name in by) for row in rows]

        grouping = ByTags.of(slots.run, slots.layer, by)
        codes = np.concatenate([grouping.codes(block) for block in blocks])
        known = [
            tuple(column[group].item() for column in grouping.columns().values()) for group in range(grouping.size)
        ]
        assert [known[code] for code in codes] == values
        assert known == sorted(set(values))

        time, steps = ByTime(bins, everything.until), [step for step, _, _ in rows]
        of_time = np.concatenate([time.codes(block) for block in blocks])
        first, last = (time.columns()[name][of_time] for name in ("first_step", "last_step"))
        assert all(low <= step < high for low, step, high in zip(first, steps, last, strict=True))
        assert not np.concatenate([OneGroup().codes(block) for block in blocks]).any()

"""Pictures, tables and progress for people at a terminal."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dualform import terminal
from dualform.table import Table


def shown(thing: Any, width: int = 80) -> str:
    out = Console(width=width, file=io.StringIO(), color_system=None)
    out.print(thing)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines())  # type: ignore[attr-defined]


def test_pictures_without_colour_are_ink_or_no_ink() -> None:
    image = np.array([[16, 0, 16, 0], [0, 16, 16, 0], [9, 3, 0, 0]])
    assert shown(terminal.half_blocks(image, colour=False)) == "▀▄█\n▀"


def test_pictures_with_colour_are_shades_of_grey() -> None:
    text = terminal.half_blocks(np.array([[16, 8], [0, 16]]), colour=True)
    assert [span.style for span in text.spans] == ["rgb(0,0,0) on rgb(255,255,255)", "rgb(128,128,128) on rgb(0,0,0)"]


@pytest.mark.parametrize(("width", "fitting"), [(80, 6), (40, 3), (5, 1)])
def test_pictures_that_do_not_fit_are_left_out(width: int, fitting: int) -> None:
    out = Console(width=width, file=io.StringIO())
    assert len(terminal.pictures(out, [np.eye(8)] * 6, list("abcdef")).columns) == fitting


def test_tables_number_queries_only_where_there_are_several() -> None:
    one = Table({"query": np.zeros(2, dtype=int), "score": np.array([12345.6, 0.1234567])})
    assert shown(terminal.table(one, "best")) == "best\n score\n12,346\n0.1235"
    several = Table({"query": np.arange(2), "score": np.array([1.0, 2.0])})
    assert "query" in shown(terminal.table(several, ""))


def test_bars_of_negative_totals_are_hollow() -> None:
    totals = Table({"query": np.zeros(2, dtype=int), "task": np.array(["a", "b"]), "total": np.array([-4.0, 2.0])})
    lines = shown(terminal.bars(totals, "", width=4)).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["░░░░", "██"]


def test_addends_stand_above_their_sum() -> None:
    parts = {"initial part": -1.25, "from class 3": 2.5}
    lines = shown(terminal.addends(parts, "logit", {"from class 3": "red"}, width=4)).splitlines()
    assert [line.split() for line in lines] == [
        ["initial", "part", "-1.25", "░░"],
        ["from", "class", "3", "+2.50", "████"],
        ["─────"],
        ["logit", "+1.25", "the", "sum"],
    ]
    ends = {line.index(amount) + 5 for line, amount in zip(lines, ["-1.25", "+2.50", "─────", "+1.25"], strict=True)}
    assert len(ends) == 1  # one below the other


def test_addends_that_are_all_zero_have_no_bars() -> None:
    assert "█" not in shown(terminal.addends({"a": 0.0}, "sum", {}))


def test_progress_is_for_people_only() -> None:
    for watched in (True, False):
        out = Console(file=io.StringIO(), force_terminal=watched)
        with terminal.progress(out, "training", 2) as done:
            done(0)
        with terminal.busy(out, "verifying") as at:
            at("layer")
        assert bool(out.file.getvalue()) == watched  # type: ignore[attr-defined]


def test_what_a_run_says_cannot_steer_the_terminal() -> None:
    told = Table({"query": np.zeros(1, dtype=int), "word": np.array(["\x1b[2J\x07gone"])})
    assert "\x1b" not in shown(terminal.table(told, "")) + repr(told)
    assert r"\x1b[2J\x07gone" in shown(terminal.table(told, ""))

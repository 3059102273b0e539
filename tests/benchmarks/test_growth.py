"""`benchmarks.growth`: slopes of known curves, a measurement in miniature, and a figure that says what it shows."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import growth
from benchmarks.growth import K, Settings, batches, report, slope, slopes, sweep
from benchmarks.growth_figure import figure, in_k
from tests.plots.cases import everything_written

pytestmark = pytest.mark.slow

SMALL = Settings(slots=(256, 512), widths=(16, 24), width=16, length=256, turn=2, turns=2)


def made_up(settings: Settings) -> dict[str, Any]:
    """What `measure` returns, with slopes that are known: 1 over slots, and those of `powers` over widths."""
    powers = {"plain": 1.5, "recorded": 1.25, "bytes": 1.0, "first": 0.75, "further": -0.5, "further_median": -0.5}
    units = {"plain": 1e-5, "recorded": 2e-5, "bytes": 1e3, "first": 2e-6, "further": 2e-7, "further_median": 3e-7}

    def point(slots: int, width: int) -> dict[str, Any]:
        grown = {name: units[name] * slots * (width / settings.width) ** power for name, power in powers.items()}
        rest = {"ratio": 2.0, "bytes_per_slot": grown["bytes"] / slots, "between": 0.1, "further_spread": 0.2}
        return {"slots": slots, "width": width, **grown, **rest}

    points = {
        "slots": [point(slots, settings.width) for slots in settings.slots],
        "width": [point(settings.length, width) for width in settings.widths],
    }
    fitted = {over: slopes(row, over) for over, row in points.items()}
    facts = {"batch": 128, "threads": 2, "torch": "2"}
    return {"growth": {**points, "slopes": fitted, "end_slopes": fitted}, "settings": {**asdict(settings), **facts}}


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_a_power_has_its_exponent_for_a_slope(power: float) -> None:
    sizes = [12.0, 48.0, 200.0]
    assert slope(sizes, [3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-12)


def test_a_slope_is_that_of_least_squares() -> None:
    x, y = [1.0, 2.0, 5.0, 7.0], [1.0, 5.0, 4.0, 9.0]
    design = torch.stack([torch.tensor(x).double().log(), torch.ones(4).double()], dim=1)
    expected = torch.linalg.lstsq(design, torch.tensor(y).double().log()[:, None]).solution[0, 0]
    assert slope(x, y) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([2], [3]), ([2, 2], [3, 4]), ([1, 2], [0, 4]), ([-1, 2], [3, 4]), ([1, 2], [3, 4, 5])]
)
def test_what_has_no_slope_is_refused(x: Sequence[float], y: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="two or more different sizes"):
        slope(x, y)


@pytest.mark.parametrize(
    ("number", "words"), [(12 * K, "12K"), (3 * K * K, "3M"), (1000, "1,000"), (0, "0"), (1536 * K, "1536K")]
)
def test_large_numbers_are_short_where_that_is_exact(number: int, words: str) -> None:
    assert in_k(number) == words


def test_the_stream_is_always_the_same_and_no_input_comes_twice() -> None:
    whole, part = list(batches(0, 3)), next(batches(2, 1))
    for one, other in zip(whole[2], part, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert torch.equal(torch.cat([ids for ids, _, _ in whole]), torch.arange(3 * 128))
    inputs = torch.cat([inputs for _, inputs, _ in whole])
    assert len(inputs.unique(dim=0)) == len(inputs)


@pytest.mark.parametrize("quick", [True, False])
def test_sizes_rise_in_whole_batches(quick: bool) -> None:
    settings = Settings.of(quick)
    assert all(slots % 128 == 0 for slots in (*settings.slots, settings.length))
    assert all(a < b for row in (settings.slots, settings.widths) for a, b in pairwise(row))
    assert (settings.slots[-1], settings.widths[-1]) == ((192 * K, 512) if quick else (3 * K * K, 2048))


def test_a_small_measurement_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = sweep(SMALL)
    assert not list(tmp_path.glob("dualform-*"))  # runs are removed
    grown = results["growth"]
    assert [(one["slots"], one["width"], one["runs"]) for one in grown["slots"]] == [(256, 16, 2), (512, 16, 1)]
    assert [(one["slots"], one["width"], one["runs"]) for one in grown["width"]] == [(256, 16, 2), (256, 24, 2)]
    for one in grown["slots"] + grown["width"]:
        assert 0 < one["further"] <= one["further_median"] <= one["further"] + one["further_spread"]
        assert min(one["plain"], one["recorded"], one["first"], one["between"], one["ratio"]) > 0
        assert len(one["ratios"]) == 2
        assert one["bytes_per_slot"] > 2 * (64 + 2 * one["width"])  # keys alone, in float16
    assert 0 < grown["slopes"]["slots"]["bytes"] < 1  # snapshots do not grow
    assert json.loads(json.dumps(results))["growth"] == grown
    assert len(figure(results).subfigs) == 2


def test_the_report_has_a_line_a_point_and_the_slopes() -> None:
    lines = report(made_up(Settings.of(quick=False))).splitlines()
    assert [line.split()[:2] for line in lines[3:8]] == [[n, "128"] for n in ("12K", "48K", "192K", "768K", "3M")]
    assert lines[8].startswith("slopes over slots (of the last two): plain 1.00 (1.00)")
    assert lines[-1].endswith("bytes 1.00 (1.00), first 0.75 (0.75), further -0.50 (-0.50)")


def test_axes_have_units_and_curves_their_slopes() -> None:
    written = everything_written(figure(made_up(Settings.of(quick=False))))
    for words in ("one query (ms)", "whole run (s)", "whole run (MB)"):
        assert written.count(words) == 2
    for words in ("slots a layer (width 128)", "width of layers (48K slots)", "12K", "3M", "64", "2048"):
        assert written.count(words) >= 3
    assert {"further: slope 1.00", "further: slope −0.50", "plain: slope 1.50", "recorded: slope 1.25"} <= set(written)


def test_all_that_is_written_is_on_the_page_and_apart() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    drawn = figure(made_up(Settings.of(quick=False)))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    shown = [text for text in drawn.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = {text: text.get_window_extent(canvas.get_renderer()) for text in shown}
    for text, box in boxes.items():
        assert all(drawn.bbox.contains(*corner) for corner in box.corners()), text.get_text()
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), f"{one.get_text()!r} on {other.get_text()!r}"


def test_the_command_draws_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "measure", lambda data, quick: made_up(Settings.of(quick)))
    monkeypatch.setattr(sys, "argv", ["growth", "--quick", "--json", "--figure", str(tmp_path / "growth.png")])
    growth.main()
    assert json.loads(capsys.readouterr().out)["settings"]["slots"] == [12 * K, 48 * K, 192 * K]
    assert (tmp_path / "growth.png").stat().st_size > 10_000

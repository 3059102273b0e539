"""What all benchmarks share: goals, the page, how often and how quick. Their own tests run tiny measurements."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dualform
from benchmarks import __main__ as everything
from benchmarks import command, page, sizes
from benchmarks.goals import GOALS, Goal, goals


def test_a_goal_is_met_from_its_figure_on() -> None:
    least, most = Goal("a", lambda d: d["a"], least=2), Goal("b", lambda d: d["b"], most=1.3)
    assert [least.line({"a": value})["met"] for value in (1.99, 2.0, 5)] == ["no", "yes", "yes"]
    assert [most.line({"b": value})["met"] for value in (1.29, 1.3, 1.31)] == ["yes", "yes", "no"]
    assert least.line({"a": "not installed"}) == {
        "claim": "a",
        "goal": "at least 2",
        "found": "not installed",
        "met": "?",
    }


def test_a_script_that_fails_leaves_the_others_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: Path | None, quick: bool) -> dict[str, Any]:
        raise MemoryError("no room")

    good = SimpleNamespace(measure=lambda data, quick: {"query_vs_read": 1.0}, report=lambda one: "fine")
    monkeypatch.setattr(everything, "SCRIPTS", {"queries": good, "totals": SimpleNamespace(measure=fails)})
    results = everything.measure(None, quick=True)
    assert results["query_vs_read"] == 1.0
    assert [goal["met"] for goal in results["goals"][:2]] == ["yes", "?"]
    assert everything.report(results).startswith("== queries ==\nfine\n\n== totals ==\nMemoryError: no room")


def test_the_page_says_what_was_measured() -> None:
    results = json.loads(page.RESULTS.read_text())
    assert page.PAGE.read_text() == page.filled(page.PAGE.read_text(), results)
    assert not results["quick"]


def test_every_goal_follows_from_the_figures_beside_it() -> None:
    results = json.loads(page.RESULTS.read_text())
    assert results["goals"] == goals(results["details"])
    assert len(results["goals"]) == len(GOALS)


def test_a_page_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no block 'machine'"):
        page.filled("# Benchmarks", {"machine": {}})


def test_blocks_replace_what_stood_there() -> None:
    text = "a\n<!-- x -->\nold | 1\n<!-- end -->\nb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "BLOCKS", {"x": lambda results: str(results["new"])})
        once = page.filled(text, {"new": r"\1 new"})
        assert once == "a\n<!-- x -->\n\\1 new\n<!-- end -->\nb"
        assert page.filled(once, {"new": r"\1 new"}) == once


@pytest.mark.parametrize(
    ("seconds", "said"), [(1.4, "1 s"), (119, "119 s"), (120, "2 minutes"), (7200, "2 hours"), (9e9, "285 years")]
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    assert page._duration(seconds) == said


def test_sizes_are_for_people() -> None:
    assert [page._bytes(size) for size in (1.0, 999, 1e3, 6.2e12, 6.2e15)] == [
        "1.0 B", "999.0 B", "1.0 kB", "6.2 TB", "6.2 PB",
    ]  # fmt: skip


def test_every_call_is_timed_and_told_its_number() -> None:
    told: list[int] = []
    assert len(command.seconds(told.append, 4)) == 4
    assert told == [0, 1, 2, 3]
    assert command.in_ms([0.002, 0.001, 0.004]) == pytest.approx({"min": 1.0, "median": 2.0, "spread": 3.0})


def test_a_benchmark_is_asked_for_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--quick", "--json", "--data", "somewhere"])
    command.run("x", "Doc.", lambda data, quick: {"data": str(data), "quick": quick}, lambda results: "report")
    assert json.loads(capsys.readouterr().out) == {"data": "somewhere", "quick": True}
    monkeypatch.setattr("sys.argv", ["x"])
    monkeypatch.delenv("DUALFORM_DATA", raising=False)
    asked: list[Any] = []

    def measure(data: Path | None, quick: bool) -> dict[str, Any]:
        asked.append((data, quick))
        return {}

    command.run("x", "Doc.", measure, lambda results: "report")
    assert asked == [(None, False)]
    assert capsys.readouterr().out == "report\n"


def test_shares_of_bytes_add_up_to_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 70), nn.ReLU(), nn.Linear(70, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.randn(8, 6)
    with dualform.record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            model(given).sum().backward()
            optimizer.step()
    results = sizes.shares(tmp_path / "run")
    raw = 4 * 24 * (6 + 70 + 70 + 3)
    assert results["in float16"] == 0.5
    assert results["and keys that come again once"] == pytest.approx(0.5 - 2 * 16 * 6 / raw)
    assert results["and values without their zeros"] < results["and keys that come again once"]
    assert results["everything"] == pytest.approx(sum(f.stat().st_size for f in (tmp_path / "run").glob("s*")) / raw)
    named = results["with a snapshot for every chapter"]
    assert named < results["everything"]  # headers, the ledger and the audit are left
    assert (results["everything"] - named) * raw < 12_000

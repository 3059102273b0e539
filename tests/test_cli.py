"""The command line: what it prints, where, and with which exit code."""

import inspect
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import dualform
from dualform import cli, terminal
from dualform.errors import QueryError
from dualform.experiments import demo
from dualform.table import Table

MODELS = """
from torch import nn

size = 3

def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

def other():
    return nn.Linear(3, 2)

def number():
    return size

def needy(width):
    return nn.Linear(width, 2)
"""


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, [str(one) for one in arguments], env={"FORCE_COLOR": None})


def fails(*arguments: object) -> str:
    """The reason, after checking that it is all there is."""
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("dualform: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def record(path: Path, *, values: bool = True, about: dict[str, Any] | None = None) -> Path:
    """Four steps of a small network, with tags."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, dtype="float32", values=values, about=about) as recorder:
        for step in range(4):
            recorder.tag(id=torch.arange(6), label=torch.arange(6) % 2, task="odd" if step % 2 else "even")
            loss = model(torch.randn(6, 3, generator=generator)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, in a current directory that has models.py and inputs.npy beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    (tmp_path / "models.py").write_text(MODELS)
    np.save(tmp_path / "inputs.npy", np.arange(12.0).reshape(4, 3))
    return record(tmp_path / "run")


def asked(run: Path, *more: object, model: str = "models:mlp", inputs: str = "inputs.npy") -> list[object]:
    return ["attend", run, "--model", model, "--input", inputs, *more]


# In general


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["attend", "--help"], ["info", "no/such/run"]])
def test_torch_is_imported_only_when_needed(arguments: list[str]) -> None:
    done = python(
        f"import sys; sys.argv = ['dualform', *{arguments!r}]\n"
        "from dualform.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('imported:', [name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    assert done.stdout.endswith("imported: []\n"), done.stderr


def test_info_needs_no_torch(run: Path) -> None:
    done = python(
        f"import sys; sys.argv = ['dualform', 'info', {str(run)!r}]\n"
        "from dualform.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    assert "24 slots" in done.stdout
    assert done.stdout.endswith("False\n"), done.stderr


def test_every_help_has_an_example() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert {"demo", "info", "verify", "attend"} <= set(commands)
    for name, command in commands.items():
        assert command.epilog.startswith(f"Example: dualform {name}")
        assert call(name, "--help").exit_code == 0


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "dualform", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dualform {dualform.__version__}\n"
    assert done.stderr == ""


def test_a_wrong_option_is_a_usage_error() -> None:
    assert call("info", "--no-such-option").exit_code == 2


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def test_an_interrupt_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(KeyboardInterrupt()))
    result = call("info", run)
    assert (result.exit_code, result.stdout, result.stderr) == (128 + signal.SIGINT, "", "dualform: interrupted\n")


def test_an_unreadable_file_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(PermissionError(13, "Permission denied", "some/file")))
    assert fails("info", run) == "dualform: some/file: Permission denied\n"


def test_a_reason_of_several_lines_becomes_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(QueryError("first\n  second")))
    assert fails("info", run) == "dualform: first second\n"


def test_a_bug_is_not_hidden(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualform.store.Run", raising(ZeroDivisionError()))
    assert isinstance(call("info", run).exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["info", "verify", "attend"])
def test_a_missing_run_is_one_line(tmp_path: Path, command: str) -> None:
    assert "there is no run at" in fails(command, tmp_path / "nowhere")


# info, verify


def test_info_is_for_people_and_for_programs(run: Path) -> None:
    assert "id (int), label (int), task (string)" in call("info", run).stdout
    document = json.loads(call("info", run, "--json").stdout)
    assert document["steps"] == 4
    assert {name: document["layers"]["0"][name] for name in ("d_in", "d_out", "slots")} == {
        "d_in": 3,
        "d_out": 5,
        "slots": 24,
    }


def test_names_are_never_read_as_markup(tmp_path: Path) -> None:
    assert "[bold]run[/bold]" in call("info", record(tmp_path / "[bold]run[" / "bold]")).stdout


def test_verify_certifies(run: Path) -> None:
    result = call("verify", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "dual = primal" in result.stdout
    assert "0.weight" in result.stdout
    document = json.loads(call("verify", run, "--json").stdout)
    assert document["ok"]
    assert document["steps_audited"] == 4
    assert document["layers"]["0"]["relative_error"] < 1e-5


def test_keys_alone_certify_nothing(tmp_path: Path) -> None:
    record(tmp_path / "keys", values=False)
    result = call("verify", tmp_path / "keys")
    assert result.exit_code == 1
    assert "not available: keys only" in result.stdout
    assert "certified" not in result.stdout
    as_json = call("verify", tmp_path / "keys", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["keys_only"]


def test_verify_finds_a_damaged_byte(run: Path) -> None:
    shard = run / "shard-000001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "is damaged" in fails("verify", run)


def test_verify_reports_shards_it_could_not_read(run: Path) -> None:
    (run / "shard-000002.safetensors").write_bytes(b"torn")
    result = call("verify", run)
    assert result.exit_code == 1
    assert "not read:" in result.stdout


# attend


def test_attend_agrees_with_the_library(run: Path) -> None:
    document = json.loads(call(*asked(run, "--index", 2, "--index", 0, "--top", 3, "--json")).stdout)
    memory = dualform.load(run)
    model = memory.model(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
    spotlight = memory.attend(model, torch.tensor([[6.0, 7.0, 8.0]]))
    assert [one["index"] for one in document["inputs"]] == [2, 0]
    layers = document["inputs"][0]["layers"]
    assert list(layers) == ["0", "2"]
    assert layers["2"]["top"] == list(spotlight["2"].top(3).rows())
    assert layers["2"]["totals"] == list(spotlight["2"].total(by="label").rows())


def test_attend_prints_totals_and_top_for_people(run: Path) -> None:
    result = call(*asked(run, "--layer", "2", "--by", "task", "--by", "label", "--per", "id"))
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("input 0, layer 2", "attention by task, label", "even", "visits", "top ids"):
        assert words in result.stdout
    assert "layer 0" not in result.stdout


def test_attend_needs_no_values(run: Path, tmp_path: Path) -> None:
    keys = record(tmp_path / "keys", values=False)
    layers = json.loads(call(*asked(keys, "--json")).stdout)["inputs"][0]["layers"]
    assert len(layers["2"]["top"]) == 10


def test_attend_uses_the_runs_own_model_and_inputs(tmp_path: Path) -> None:
    demo.train(tmp_path / "run", steps=3)
    result = call("attend", tmp_path / "run", "--index", 3, "--layer", "output", "--top", 2, "--json")
    assert list(json.loads(result.stdout)["inputs"][0]["layers"]) == ["output"]


def test_attend_reads_safetensors(run: Path, tmp_path: Path) -> None:
    from_npy = call(*asked(run, "--index", 1, "--json")).stdout
    rows = torch.arange(12.0).reshape(4, 3)
    save_file({"any name": rows}, tmp_path / "one.safetensors")
    save_file({"inputs": rows, "labels": torch.zeros(4)}, tmp_path / "named.safetensors")
    for name in ("one", "named"):
        assert call(*asked(run, "--index", 1, "--json", inputs=f"{name}.safetensors")).stdout == from_npy


def test_attend_does_not_import_what_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("open('owned', 'w').close()\n")
    for number, named in enumerate(["evil:model", "dualform.cli:main", "dualformevil:model", 7]):
        run = record(tmp_path / f"run{number}", about={"model": named})
        assert "pass --model PACKAGE:FACTORY" in fails("attend", run)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("named", ["../inputs.npy", "/etc/inputs.npy", "a/b.npy", "..", "", "a\\b.npy", "c:b.npy"])
def test_attend_reads_no_inputs_outside_of_the_run(tmp_path: Path, named: str) -> None:
    run = record(tmp_path / "run", about={"model": demo.MODEL, "inputs": named})
    with pytest.raises(QueryError, match="which is no file of its own"):
        cli._own_inputs(dualform.load(run))


BAD_QUESTIONS: dict[str, tuple[list[object], str]] = {
    "no model": (["attend", "run"], "pass --model PACKAGE:FACTORY"),
    "no inputs": (["attend", "run", "--model", "models:mlp"], "pass --input FILE.npy"),
    "no colon": (asked(Path("run"), model="models"), "--model must be PACKAGE:FACTORY"),
    "no module": (asked(Path("run"), model="nowhere.models:mlp"), "cannot import 'nowhere.models'"),
    "no factory": (asked(Path("run"), model="models:cnn"), "no factory in models called 'cnn'; there is"),
    "needs arguments": (asked(Path("run"), model="models:needy"), "models:needy does not make a model: TypeError"),
    "not callable": (asked(Path("run"), model="models:size"), "models:size does not make a model: TypeError"),
    "not a module": (asked(Path("run"), model="models:number"), "must make a torch.nn.Module, it made a int"),
    "another model": (asked(Path("run"), model="models:other"), "no layer in this model called '0'"),
    "no file": (asked(Path("run"), inputs="nothing.npy"), "there is no file nothing.npy"),
    "odd file": (asked(Path("run"), inputs="models.py"), "models.py is neither .npy nor .safetensors"),
    "no such input": (asked(Path("run"), "--index", 4), "there is no input 4; there are 4, counted from 0"),
    "negative input": (asked(Path("run"), "--index", -1), "there is no input -1"),
    "no such layer": (asked(Path("run"), "--layer", "7"), "no layer '7'; there is '0', '2'"),
    "no such group": (asked(Path("run"), "--by", "colour"), "no tag 'colour'; there is 'id', 'label', 'task'"),
    "no such unit": (asked(Path("run"), "--per", "colour"), "no tag 'colour'; there is"),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
@pytest.mark.usefixtures("run")
def test_attend_says_what_is_wrong_with_a_question(case: str) -> None:
    arguments, reason = BAD_QUESTIONS[case]
    assert reason in fails(*arguments)


BAD_INPUTS = {
    "wrong shape": (np.zeros((4, 9)), "does not take inputs of shape (9,) of float32"),
    "a number": (np.zeros(()), "holds a single number"),
    "objects": (np.array([{}], dtype=object), "as an array of numbers"),
    "strings": (np.array(["a"]), "as an array of numbers"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_attend_says_what_is_wrong_with_inputs(run: Path, case: str) -> None:
    content, reason = BAD_INPUTS[case]
    np.save("bad.npy", content, allow_pickle=True)
    assert reason in fails(*asked(run, inputs="bad.npy"))


@pytest.mark.parametrize("name", ["torn.npy", "torn.safetensors"])
def test_attend_says_so_when_inputs_are_damaged(run: Path, name: str) -> None:
    Path(name).write_bytes(b"nothing of the kind")
    assert f"cannot read {name}" in fails(*asked(run, inputs=name))


def test_attend_lists_the_tensors_it_could_not_choose_from(run: Path) -> None:
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, "two.safetensors")
    assert "called 'inputs'; there is 'a', 'b'" in fails(*asked(run, inputs="two.safetensors"))


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dualform", "info", str(run), "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


def test_json_has_no_infinity() -> None:
    assert cli._finite({"a": [float("inf"), 1.0], "b": float("nan")}) == {"a": [None, 1.0], "b": None}


def test_the_demo_is_as_long_as_it_says() -> None:
    assert inspect.signature(cli.demo).parameters["steps"].default == demo.STEPS


# Pictures and tables for people


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


def test_progress_is_for_people_only() -> None:
    for watched in (True, False):
        out = Console(file=io.StringIO(), force_terminal=watched)
        with terminal.progress(out, "training", 2) as done:
            done(0)
        with terminal.busy(out, "verifying") as at:
            at("layer")
        assert bool(out.file.getvalue()) == watched  # type: ignore[attr-defined]

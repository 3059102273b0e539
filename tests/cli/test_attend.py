"""`attend`: it agrees with the library, runs no stranger's code, and says what is wrong with a question."""

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dualform
from dualform.companions import TRUSTED_MODELS, own_inputs
from dualform.errors import QueryError
from dualform.experiments import demo
from dualform.experiments.cifar.training import CIFAR, DIGITS
from dualform.experiments.language.network import FACTORY
from dualform.experiments.training import PAPER, SMALL
from dualform.inputs import INPUTS, read_inputs
from tests.cli.conftest import call, fails, record
from tests.store.hostile.forge import Forged
from tests.viewer.whole_models import CONVOLUTIONS, convolutional, convolutions

pytestmark = pytest.mark.slow


def asked(run: Path, *more: object, model: str = "models:mlp", inputs: str = "inputs.npy") -> list[object]:
    return ["attend", run, "--model", model, "--input", inputs, *more]


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


def test_slots_without_a_tag_are_null_and_none(run: Path) -> None:
    forged = Forged.of(run)
    forged.shards[1].with_own_tags()
    for name in [f"{layer}/{tag}" for layer in ("0", "2") for tag in ("id", "label")]:
        column = forged.shards[1].tensors[f"tags/{name}"]
        forged.shards[1].tensors[f"untagged/{name}"] = np.arange(len(column)) % 6 == 3
        column[3::6] = 0
    forged.write(run)
    question = asked(run, "--layer", "2", "--by", "label", "--per", "id")
    answer = json.loads(call(*question, "--json").stdout)["inputs"][0]["layers"]["2"]
    assert [row["label"] for row in answer["totals"]] == [0, 1, None]
    assert {row["id"]: row["visits"] for row in answer["top"]} == dict.fromkeys((0, 1, 2, 4, 5, None), 4)
    assert "None" in call(*question).stdout


def test_attend_asks_about_whole_images_where_a_layer_has_positions(tmp_path: Path) -> None:
    run = convolutions(tmp_path / "run")
    result = call("attend", run, "--model", CONVOLUTIONS.model, "--index", 3, "--per", "id", "--top", 3, "--json")
    layers = json.loads(result.stdout)["inputs"][0]["layers"]
    memory = dualform.load(run)
    spotlight = memory.attend(memory.model(convolutional()), read_inputs(run / INPUTS).row(3))
    for name in ("0", "1", "4", "5"):
        assert layers[name]["top"] == list(spotlight[name].per_input().top(3, per="id").rows())
    assert layers["8"]["totals"] == list(spotlight["8"].total(by="label").rows())


def of_the_library(run: Path) -> tuple[dualform.Spotlight, torch.Tensor]:
    memory = dualform.load(run)
    model = memory.model(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
    inputs = torch.tensor([[6.0, 7.0, 8.0]])
    return memory.attend(model, inputs), model(inputs).detach()


@pytest.mark.parametrize("target", [0, 1, None])
def test_contributions_agree_with_the_library(run: Path, target: int | None) -> None:
    more = [] if target is None else ["--target", target]
    result = call(*asked(run, "--index", 2, "--top", 3, "--per", "id", "--contribution", *more, "--json"))
    layers = json.loads(result.stdout)["inputs"][0]["layers"]
    spotlight, logits = of_the_library(run)
    meant = int(logits.argmax()) if target is None else target
    for name in ("0", "2"):
        wanted = spotlight[name].contribution(meant)
        assert layers[name]["top"] == list(wanted.top(3, per="id").rows())
        assert layers[name]["totals"] == list(wanted.total(by="label").rows())
        assert (layers[name]["target"], layers[name]["first_order"]) == (meant, name == "0")
        added = sum(row["total"] for row in layers[name]["totals"])
        assert layers[name]["initial"] + added == pytest.approx(layers[name]["output"], abs=1e-5)
    assert layers["2"]["output"] == pytest.approx(float(logits[0, meant]), abs=1e-5)


def test_contributions_for_people_add_up_in_a_line(run: Path) -> None:
    shown = call(*asked(run, "--index", 2, "--contribution", "--target", 1)).stdout
    inner, last = (line for line in shown.splitlines() if line.startswith("initial part"))
    assert inner.endswith("along the gradient of the logit of class 1 (first order)")
    assert last.endswith("the logit of class 1")
    assert "gradient" not in last
    initial, added, output = (float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?(?=[ ,])", last)[:3])
    assert initial + added == pytest.approx(output, rel=2e-3, abs=1e-3)
    assert shown.count("contribution to the logit of class 1 by label") == 2
    assert shown.count("top slots by contribution") == 2
    assert "attention" not in shown


def test_contributions_need_values(run: Path, tmp_path: Path) -> None:
    keys = record(tmp_path / "keys", values=False)
    assert "values" in fails(*asked(keys, "--contribution"))


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
    names = [
        "evil:model",
        "dualform.cli:main",
        "dualformevil:model",
        "dualform.experiments.reproduce:reproduce",
        7,
        [7],
    ]
    for number, named in enumerate(names):
        run = record(tmp_path / f"run{number}", about={"model": named})
        assert "pass --model PACKAGE:FACTORY" in fails("attend", run)
    assert not (tmp_path / "owned").exists()


def test_what_a_run_may_name_is_there() -> None:
    named = {hparams.model for hparams in (PAPER, SMALL, CIFAR, DIGITS)}
    assert {demo.MODEL, FACTORY, *named} == {*TRUSTED_MODELS}
    for model in TRUSTED_MODELS:
        module, _, factory = model.partition(":")
        assert callable(getattr(import_module(module), factory))


@pytest.mark.parametrize("named", ["../inputs.npy", "/etc/inputs.npy", "a/b.npy", "..", "", "a\\b.npy", "c:b.npy"])
def test_attend_reads_no_inputs_outside_of_the_run(tmp_path: Path, named: str) -> None:
    run = record(tmp_path / "run", about={"model": demo.MODEL, "inputs": named})
    with pytest.raises(QueryError, match="which is no file of its own"):
        own_inputs(dualform.load(run))


BAD_QUESTIONS: dict[str, tuple[list[object], str]] = {
    "no model": (["attend", "run"], "pass --model PACKAGE:FACTORY"),
    "no inputs": (["attend", "run", "--model", "models:mlp"], "pass --input FILE.npy"),
    "no colon": (asked(Path("run"), model="models"), "--model must be PACKAGE:FACTORY"),
    "no module": (asked(Path("run"), model="nowhere.models:mlp"), "cannot import 'nowhere.models'"),
    "no factory": (asked(Path("run"), model="models:cnn"), "no factory in models called 'cnn'; choose from"),
    "needs arguments": (asked(Path("run"), model="models:needy"), "models:needy does not make a model: TypeError"),
    "not callable": (asked(Path("run"), model="models:size"), "models:size does not make a model: TypeError"),
    "not a module": (asked(Path("run"), model="models:number"), "must make a torch.nn.Module, it made a int"),
    "another model": (asked(Path("run"), model="models:other"), "no layer in this model called '0'"),
    "no file": (asked(Path("run"), inputs="nothing.npy"), "there is no file nothing.npy"),
    "odd file": (asked(Path("run"), inputs="models.py"), "models.py is neither .npy nor .safetensors"),
    "no such input": (asked(Path("run"), "--index", 4), "no input 4; choose from 0 to 3"),
    "negative input": (asked(Path("run"), "--index", -1), "no input -1"),
    "no such layer": (asked(Path("run"), "--layer", "7"), "no layer '7'; choose from '0', '2'"),
    "no such group": (asked(Path("run"), "--by", "colour"), "no tag 'colour'; choose from 'id', 'label', 'task'"),
    "no such target": (asked(Path("run"), "--contribution", "--target", 2), "has classes 0 to 1; the target is 2"),
    "target of attention": (asked(Path("run"), "--target", 1), "it needs --contribution"),
    "contribution to a prompt": (asked(Path("run"), "--contribution", "--prompt", "a"), "does not go with --prompt"),
    "no such unit": (asked(Path("run"), "--per", "colour"), "no tag 'colour'; choose from"),
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
    assert "called 'inputs'; choose from 'a', 'b'" in fails(*asked(run, inputs="two.safetensors"))

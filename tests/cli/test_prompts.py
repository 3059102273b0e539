"""Language models on the command line: trained, asked, and asked again later."""

import json
from pathlib import Path

import pytest
import torch

import dualform
from tests.cli.conftest import call, fails, record

pytestmark = pytest.mark.slow

FABLE = (
    "A Wolf and a Lamb came to a brook. The Wolf stood high up the stream and the Lamb a little distance below.\n" * 30
)
QUICK = ("--steps", "4", "--hidden", "8")


@pytest.fixture
def fable(tmp_path: Path) -> Path:
    path = tmp_path / "fable.txt"
    path.write_text(FABLE, encoding="utf-8")
    return path


@pytest.mark.parametrize(("experiment", "prompt"), [("charlm", "a little d"), ("wordlm", "the Lamb a little")])
def test_a_text_of_ones_own(tmp_path: Path, fable: Path, experiment: str, prompt: str) -> None:
    out = tmp_path / "out"
    shown = call(
        "reproduce", experiment, "--text", fable, *QUICK, "--keep-run", "--prompt", prompt, "--out", out
    ).stdout
    for words in ("Perplexity", "same next token", "The model expects next", "single updates", "dualform attend"):
        assert words in shown
    assert "fable.txt" in (out / "results.md").read_text(encoding="utf-8")
    again = call("attend", out / "runs" / "seed-0", "--prompt", prompt, "--top", 2).stdout
    assert "expected next" in again
    assert "summed over all visits" in again
    document = json.loads(call("attend", out / "runs" / "seed-0", "--prompt", prompt, "--json").stdout)
    answer = document["prompts"][0]
    assert "".join(answer["prompt"]).replace(" ", "") == prompt.replace(" ", "")
    assert answer["layers"]["lstm.l0"]["summed"][0]["visits"] > 1
    saved = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert saved["queries"][0]["layers"] == answer["layers"]  # the model that was kept is the one that was trained


def test_a_merged_run_has_no_single_updates(tmp_path: Path, fable: Path) -> None:
    out = tmp_path / "out"
    document = json.loads(
        call("reproduce", "charlm", "--text", fable, *QUICK, "--merge", "--keep-run", "--out", out, "--json").stdout
    )
    assert document["merged"]
    assert len(document["queries"]) == 3  # pieces of the text itself
    assert all(query["layers"]["lstm.l0"]["single"] is None for query in document["queries"])
    assert "single updates" not in call("attend", out / "runs" / "seed-0", "--prompt", "a Lamb").stdout


def test_a_language_model_with_values_is_certified_and_can_be_muted(fable: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = json.loads(
        call("reproduce", "charlm", "--text", fable, *QUICK, "--values", "--keep-run", "--out", out, "--json").stdout
    )
    assert document["certificate"]["ok"]
    assert "and dual = primal to" in (out / "results.md").read_text(encoding="utf-8")
    memory = dualform.load(out / "runs" / "seed-0")
    whole, muted = (one.weights("lstm.l0")["lstm.weight_ih_l0"] for one in (memory, memory.without(position=range(9))))
    assert not torch.equal(whole, muted)
    refused = fails("reproduce", "charlm", "--text", fable, *QUICK, "--values", "--merge", "--out", tmp_path / "other")
    assert "choose either --values or --merge" in refused


def test_the_embedded_text_needs_nothing(tmp_path: Path) -> None:
    document = json.loads(call("reproduce", "wordlm", *QUICK, "--out", tmp_path / "out", "--json").stdout)
    assert document["dataset"] == "topics"
    assert document["quality"]["queries"] == 200
    assert all(query["layers"]["lstm.l0"]["summed"][0]["title"] for query in document["queries"])


def test_prompts_that_cannot_be_read_are_refused_before_the_training(tmp_path: Path, fable: Path) -> None:
    start = ("reproduce", "charlm", "--text", fable, "--out", tmp_path / "out", "--prompt")
    assert "holds no characters" in fails(*start, "")
    assert "no character 'é', 'ß'" in fails(*start, "Lamb éß")
    assert "more than the" in fails(*start, "a" * len(FABLE))
    assert "no word 'sheep'" in fails("reproduce", "wordlm", "--text", fable, "--prompt", "a little sheep")
    assert not (tmp_path / "out" / "runs").exists()


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    start = ("reproduce", "charlm", "--out", tmp_path / "out", "--text")
    (tmp_path / "binary").write_bytes(b"\x89PNG\0\1")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_text("A Wolf.")
    assert "is not a text in UTF-8" in fails(*start, tmp_path / "binary")
    assert "holds no text" in fails(*start, tmp_path / "empty")
    assert "needs 1,000" in fails(*start, tmp_path / "short")
    assert "there is no file" in fails(*start, tmp_path / "nowhere")
    assert "'aesop'" in fails("reproduce", "charlm", "--out", tmp_path / "out", "--dataset", "aesops")


def test_a_run_without_a_text_says_what_is_missing(run: Path) -> None:
    assert "which text? the run names none" in fails("attend", run, "--model", "models:mlp", "--prompt", "a")


def test_a_language_model_is_asked_with_a_prompt(tmp_path: Path, fable: Path) -> None:
    out = tmp_path / "out"
    call("reproduce", "charlm", "--text", fable, *QUICK, "--keep-run", "--out", out, "--json")
    assert "pass --prompt" in fails("attend", out / "runs" / "seed-0")


def test_a_run_of_a_strange_model_is_refused(tmp_path: Path) -> None:
    about = {"model": "dualform.experiments.language.network:LanguageModel", "arguments": {"vocabulary": ["rm"]}}
    assert "not all numbers" in fails("attend", record(tmp_path / "run", about=about), "--prompt", "a")

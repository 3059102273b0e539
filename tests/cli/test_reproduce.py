"""`dualform reproduce`: its options, its printing, its refusals."""

import json
from pathlib import Path

import pytest

import dualform
from dualform.cli.reproduce import reproduce
from dualform.experiments import plan
from dualform.experiments.cifar import plan as cifar
from dualform.experiments.language import plan as language
from tests.cli.conftest import call, fails

pytestmark = pytest.mark.slow

QUICK = ("--dataset", "digits", "--steps", "5", "--index", "0")


def test_the_command_knows_every_experiment() -> None:
    assert [one.name for one in reproduce.registered_commands] == [
        *plan.IMAGE_EXPERIMENTS,
        cifar.NAME,
        *language.LANGUAGE_EXPERIMENTS,
    ]


def test_tables_for_people(tmp_path: Path) -> None:
    shown = call("reproduce", "single", *QUICK, "--out", tmp_path / "out").stdout
    for words in ("Table 1: attention as a classifier", "layer-2, right", "nearest class mean", "exact", "index.html"):
        assert words in shown
    assert (tmp_path / "out" / "index.html").is_file()


def test_convolutional_networks_for_people_and_for_programs(tmp_path: Path) -> None:
    shown = call("reproduce", "cifar", *QUICK, "--out", tmp_path / "out").stdout
    for words in ("Table 1: attention as a classifier", "output, last epoch, right", "second task muted", "exact"):
        assert words in shown
    again = ("--out", tmp_path / "out", "--overwrite", "--keep-run", "--json")
    document = json.loads(call("reproduce", "cifar", *QUICK, *again).stdout)
    assert (document["experiment"], document["dataset"], document["steps"]) == ("cifar", "digits", [5, 5])
    run = tmp_path / "out" / "runs" / "seed-0" / "last-epoch"
    assert "visits" in call("attend", run, "--index", 3, "--per", "id", "--layer", "output").stdout


def test_one_document_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(call("reproduce", "joint", *QUICK, "--json").stdout)
    assert set(document["accuracy"]) == {"digits", "turned-digits"}
    assert (tmp_path / "results" / "joint" / "results.md").is_file()  # the default place
    assert "--overwrite" in fails("reproduce", "joint", *QUICK)
    assert call("reproduce", "joint", *QUICK, "--json", "--overwrite").exit_code == 0


def test_a_kept_run_can_be_asked_without_naming_model_or_inputs(tmp_path: Path) -> None:
    call("reproduce", "continual", *QUICK, "--out", tmp_path, "--keep-run", "--json")
    run = tmp_path / "runs" / "seed-0"
    assert "turned-digits" in call("attend", run, "--index", 400, "--by", "task", "--layer", "layer-2").stdout


def test_a_language_model_is_kept_if_told_and_without_slots_if_told(tmp_path: Path) -> None:
    quick = ("reproduce", "charlm", "--hidden", 8, "--steps", 3, "--prompt", "the value of", "--out", tmp_path)
    assert "--merge" in fails(*quick, "--keep", "snapshots", "--values")
    assert "Ask it more" not in call(*quick).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "results.json", "results.md"]
    shown = call(*quick, "--overwrite", "--keep", "snapshots", "--keep-run").stdout
    assert "were made again" in shown
    assert "Ask it more: dualform attend" in shown
    document = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (document["kept"], document["certificate"]["ok"]) == ("snapshots", True)
    memory = dualform.load(tmp_path / "runs" / "seed-0")
    assert memory.about["recipe_arguments"] == {"experiment": "charlm", "dataset": "topics", "seed": 0, "hidden": 8}


def test_a_run_does_not_name_a_text_of_the_user_s_own(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("Dear reader, all is well here, and I hope it is so with you. " * 40)
    quick = ("--text", tmp_path / "letters.txt", "--hidden", 8, "--steps", 3, "--keep-run", "--json")
    call("reproduce", "wordlm", *quick, "--out", tmp_path / "out")
    memory = dualform.load(tmp_path / "out" / "runs" / "seed-0")
    assert "recipe" not in memory.about


def test_an_unknown_way_to_keep_is_refused_before_anything_is_replaced(tmp_path: Path) -> None:
    call("reproduce", "single", *QUICK, "--out", tmp_path)
    refused = call("reproduce", "single", *QUICK, "--out", tmp_path, "--overwrite", "--keep", "everything")
    assert refused.exit_code == 2
    assert (tmp_path / "results.json").is_file()


def test_missing_data_say_where_to_put_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualform.datasets import mnist

    monkeypatch.setenv("DUALFORM_DATA", str(tmp_path))
    monkeypatch.setenv("DUALFORM_HOME", str(tmp_path / "cache"))
    for name, source in mnist.SOURCES.items():
        closed = mnist.Download(source.class_names, ("nowhere",), ("http://127.0.0.1:9/",), source.digests)
        monkeypatch.setitem(mnist.SOURCES, name, closed)
    reason = fails("reproduce", "single", "--out", tmp_path / "out")
    assert "train-images-idx3-ubyte" in reason
    assert "--dataset digits" in reason
    assert not (tmp_path / "out").exists()

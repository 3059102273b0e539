"""`suspects`: it agrees with the library, writes whole files or none, and says what is wrong with a question."""

import csv
import json
from pathlib import Path

import pytest

import dualform
from tests.cli.conftest import call, fails, record
from tests.recipe_runs import RECIPE, digits, recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("run") / "digits", 30)


def test_it_agrees_with_the_library(trained: Path, tmp_path: Path) -> None:
    expected = dualform.load(trained).suspects(7)
    answer = json.loads(call("suspects", trained, "--top", 7, "--json", "--csv", tmp_path / "a.csv").stdout)
    assert answer["suspects"] == json.loads(json.dumps([*expected.rows()]))
    assert (answer["run"], answer["csv"]) == (str(trained), str(tmp_path / "a.csv"))
    rows = [*csv.reader((tmp_path / "a.csv").read_text().splitlines())]
    assert rows[0] == expected.columns
    assert [row[0] for row in rows[1:]] == [str(one) for one in expected["id"]]


def test_it_prints_a_table_for_people(trained: Path, tmp_path: Path) -> None:
    result = call("suspects", trained, "--top", 3, "--csv", tmp_path / "a.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("suggested", "of label", f"the list is in {tmp_path / 'a.csv'}"):
        assert words in result.stdout
    assert all(str(one) in result.stdout for one in dualform.load(trained).suspects(3)["id"])


def test_it_says_where_labels_are_likelier_than_what_else_is_suggested(trained: Path) -> None:
    scores = dualform.load(trained).suspects(10**6)["score"]
    assert scores[0] > 0 > scores[-1]
    assert "a score below 0" not in call("suspects", trained, "--top", 1).stdout
    assert "a score below 0" in call("suspects", trained, "--top", len(scores)).stdout


def test_slots_are_made_again_by_the_recipe(trained: Path, tmp_path: Path) -> None:
    recipe().train(tmp_path / "run", 30, threads=1, keep="snapshots")
    assert "pass --recipe PACKAGE:FACTORY" in fails("suspects", tmp_path / "run")
    again = json.loads(call("suspects", tmp_path / "run", "--recipe", RECIPE, "--json").stdout)
    stored = json.loads(call("suspects", trained, "--json").stdout)
    assert [row["id"] for row in again["suspects"]] == [row["id"] for row in stored["suspects"]]


def test_files_are_whole_or_not_there(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    assert "replace it with --overwrite" in fails("suspects", trained, "--csv", file)
    assert file.read_text() == "mine"
    assert call("suspects", trained, "--csv", file, "--overwrite").exit_code == 0
    assert file.read_text().startswith("id,score,label,suggested,")
    assert "there is no directory" in fails("suspects", trained, "--csv", tmp_path / "no" / "a.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_what_cannot_be_asked(trained: Path, tmp_path: Path) -> None:
    assert call("suspects", trained, "--top", 0).exit_code == 2
    assert "no run at" in fails("suspects", tmp_path / "none")
    assert "are not those of a softmax cross-entropy" in fails("suspects", record(tmp_path / "loop"))
    assert "holds keys only" in fails("suspects", record(tmp_path / "keys", values=False))

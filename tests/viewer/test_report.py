"""What a report is about, where nobody says."""

from pathlib import Path

from dualform.viewer.exhibit import open_exhibit
from dualform.viewer.listing import class_of
from dualform.viewer.report import chosen_for
from tests.viewer import runs


def test_it_is_about_all_tasks_and_many_classes(tmp_path: Path) -> None:
    exhibit = open_exhibit(runs.pictures(tmp_path / "pictures"), runs.PICTURES)
    assert exhibit.inputs is not None
    assert exhibit.inputs.tasks is not None
    assert exhibit.outputs is not None
    assert exhibit.outputs.right is not None
    chosen = list(chosen_for(exhibit).inputs)
    right = exhibit.outputs.right[chosen].tolist()
    assert right == sorted(right)
    for outcome in (False, True):
        of_outcome = [index for index, one in zip(chosen, right, strict=True) if one is outcome]
        classes = [class_of(exhibit, index) for index in of_outcome]
        assert 0 < len(classes) == len(set(classes)) <= 4
        there = set(exhibit.inputs.tasks[exhibit.outputs.right == outcome].tolist())
        assert set(exhibit.inputs.tasks[of_outcome].tolist()) == there


def test_without_a_model_it_is_about_the_first_inputs(tmp_path: Path) -> None:
    exhibit = open_exhibit(runs.pictures(tmp_path / "pictures"))
    assert list(chosen_for(exhibit).inputs) == list(range(8))

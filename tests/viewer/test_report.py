"""What a report is about, where nobody says."""

from pathlib import Path

import numpy as np
import torch

from dualform.inputs import INPUTS, save_inputs
from dualform.viewer.exhibit import Named, open_exhibit
from dualform.viewer.listing import class_of
from dualform.viewer.report import default_inputs
from tests.viewer import runs


def test_it_is_about_all_tasks_and_many_classes(tmp_path: Path) -> None:
    exhibit = open_exhibit(runs.pictures(tmp_path / "pictures"), runs.PICTURES)
    assert exhibit.inputs is not None
    assert exhibit.inputs.tasks is not None
    assert exhibit.outputs is not None
    assert exhibit.outputs.right is not None
    chosen = list(default_inputs(exhibit).indices)
    right = exhibit.outputs.right[chosen].tolist()
    assert right == sorted(right)
    for outcome in (False, True):
        of_outcome = [index for index, one in zip(chosen, right, strict=True) if one is outcome]
        every = torch.nonzero(exhibit.outputs.right == outcome).flatten().tolist()
        assert len(of_outcome) == min(4, len(every)) > 0
        there = {class_of(exhibit, index) for index in every}
        assert len({class_of(exhibit, index) for index in of_outcome}) == min(4, len(there))
        assert set(exhibit.inputs.tasks[of_outcome].tolist()) == set(exhibit.inputs.tasks[every].tolist())


def test_slots_need_no_labels_for_it(tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    save_inputs(path, inputs=torch.tensor(np.load(path / "mine.npy")), labels=torch.tensor([0, 1, 0]))
    exhibit = open_exhibit(path, Named(model=runs.ROWS.model, inputs=path / INPUTS))
    assert not exhibit.classes.every
    assert sorted(default_inputs(exhibit).indices) == [0, 1, 2]


def test_without_a_model_it_is_about_the_first_inputs(tmp_path: Path) -> None:
    exhibit = open_exhibit(runs.pictures(tmp_path / "pictures"))
    assert list(default_inputs(exhibit).indices) == list(range(8))

"""What a report is about, where nobody says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dualform.inputs import INPUTS, save_inputs
from dualform.viewer.opened_run import Companions, open_run
from dualform.viewer.report import default_inputs
from tests.viewer import runs

pytestmark = pytest.mark.slow


def test_it_is_about_all_tasks_and_many_classes(tmp_path: Path) -> None:
    opened_run = open_run(runs.pictures(tmp_path / "pictures"), runs.PICTURES)
    assert opened_run.inputs is not None
    assert opened_run.inputs.tasks is not None
    assert opened_run.outputs is not None
    assert opened_run.outputs.right is not None
    chosen = list(default_inputs(opened_run).indices)
    right = opened_run.outputs.right[chosen].tolist()
    assert right == sorted(right)
    for outcome in (False, True):
        of_outcome = [index for index, one in zip(chosen, right, strict=True) if one is outcome]
        every = torch.nonzero(opened_run.outputs.right == outcome).flatten().tolist()
        assert len(of_outcome) == min(4, len(every)) > 0
        there = {opened_run.class_of(index) for index in every}
        assert len({opened_run.class_of(index) for index in of_outcome}) == min(4, len(there))
        assert set(opened_run.inputs.tasks[of_outcome].tolist()) == set(opened_run.inputs.tasks[every].tolist())


def test_slots_need_no_labels_for_it(tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    save_inputs(path, inputs=torch.tensor(np.load(path / "mine.npy")), labels=torch.tensor([0, 1, 0]))
    opened_run = open_run(path, Companions(model=runs.ROWS.model, inputs=path / INPUTS))
    assert not opened_run.classes.entries
    assert sorted(default_inputs(opened_run).indices) == [0, 1, 2]


def test_without_a_model_it_is_about_the_first_inputs(tmp_path: Path) -> None:
    opened_run = open_run(runs.pictures(tmp_path / "pictures"))
    assert list(default_inputs(opened_run).indices) == list(range(8))

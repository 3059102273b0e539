"""Table 1: agreement counted by hand, attended classes against a dense loop."""

from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch

import dualform
from dualform.experiments.table1 import PAPER_AGREEMENT, agreement, attended_classes, measure, nearest_means
from dualform.experiments.training import SMALL, Phase, train
from tests.experiments.images import two_tasks


def test_agreement_by_hand() -> None:
    target = np.array([0, 1, 2, 3, 4])
    output = np.array([0, 1, 2, 5, 6])  # wrong twice
    attended = np.array([0, 1, 7, 3, 6])
    shares = agreement(attended, output, target)
    assert shares == pytest.approx({"wrong_target": 50.0, "wrong_output": 50.0, "right": 200 / 3})


def test_a_network_without_mistakes_has_no_share_of_them() -> None:
    same = np.array([1, 2])
    shares = agreement(same, same, same)
    assert shares["right"] == 100.0
    assert isnan(shares["wrong_target"])
    assert isnan(shares["wrong_output"])


def test_attended_classes_are_those_of_a_dense_loop(tmp_path: Path) -> None:
    first, _ = two_tasks()
    trained = train([Phase((first,), 6)], SMALL, seed=0, path=tmp_path / "run")
    memory = dualform.load(tmp_path / "run")
    plain, valued = attended_classes(memory, trained.model, first.test)
    slots = memory.attend(trained.model, first.test.images)["layer-0"].top(10_000)
    visits = np.bincount(slots.where(query=0)["id"], minlength=len(first.train))
    for row, image in enumerate(first.test.images):
        weights = (first.train.images @ image).abs() * torch.from_numpy(visits)
        totals = [float(weights[first.train.labels == label].sum()) for label in range(10)]
        assert plain["layer-0"][row] == int(np.argmax(totals))
    assert set(plain) == set(valued) == {"layer-0", "layer-1", "layer-2"}


def test_nearest_means_by_hand(tmp_path: Path) -> None:
    first, _ = two_tasks()
    trained = train([Phase((first,), 1)], SMALL, seed=0, path=tmp_path / "run")
    nearest = nearest_means(trained.model, first)["layer-0"]
    for row, image in enumerate(first.test.images):
        means = [first.train.images[first.train.labels == label].mean(dim=0) for label in range(10)]
        assert nearest[row] == int(np.argmin([float((image - mean).norm()) for mean in means]))


def test_everything_is_measured_for_every_layer(tmp_path: Path) -> None:
    first, _ = two_tasks()
    trained = train([Phase((first,), 2)], SMALL, seed=0, path=tmp_path / "run")
    table = measure(dualform.load(tmp_path / "run"), trained.model, first)
    for part in (table.attention, table.valued, table.nearest_mean, PAPER_AGREEMENT):
        assert set(part) == {"layer-0", "layer-1", "layer-2"}
    assert set(table.frequency) == {"wrong_target", "wrong_output", "right"}

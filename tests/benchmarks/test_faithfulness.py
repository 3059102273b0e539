"""What predicts retraining, measured on a network that is trained in a moment; the page that says so."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import faithfulness, faithfulness_page, five_answers, suspects
from benchmarks.page import filled
from benchmarks.predictors import METHODS

pytestmark = pytest.mark.slow

OURS = [name for name in METHODS if "(" not in name]


def tiny() -> faithfulness.Subject:
    """Return a training on points that a line tells apart, so that more of them on one side move it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(60, 5, generator=generator)
    labels = (images[:, 0] + 0.5 * torch.randn(60, generator=generator) > 0).long()
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)  # noqa: E731
    return faithfulness.Subject(images, labels, images[:6] + 0.1, labels[:6], (5, 8, 2), 10, 40, sgd)


def test_what_predicts_retraining(tmp_path: Path) -> None:
    trained = faithfulness.train(tiny(), tmp_path / "run", runs=12)
    measured = {name: faithfulness.measured(trained, METHODS[name]) for name in OURS}
    assert measured["influence, exact"]["lds"]["0.1"] > 0.8
    assert measured["influence, exact"]["lds"]["0.1"] > measured["attention, best layer"]["lds"]["0.1"]
    for of in measured.values():
        assert of["kept"] == trained.memory.summary()["bytes"]
        assert of["trainings"] == pytest.approx((of["prepare"] + of["ask"]) / trained.seconds)
    report = faithfulness.report({"subjects": {"tiny": {**measured, "TRAK (traker)": {"missing": "no module"}}}})
    assert "not measured: no module" in report
    assert "influence, fast" in report


def test_trainings_without_examples_are_those_of_the_memory(tmp_path: Path) -> None:
    trained = faithfulness.train(tiny(), tmp_path / "run", runs=3)
    kept, outputs = trained.truth[0.1]
    for weights, out in zip(kept, outputs, strict=True):
        left_out = torch.nonzero(weights == 0).flatten().tolist()
        assert len(left_out) == 6
        torch.testing.assert_close(trained.subject.margins(trained.memory.retrain(without={"id": left_out})), out)


def test_changed_labels_are_found() -> None:
    generator = torch.Generator().manual_seed(1)
    raw = torch.randn(10, 12, generator=generator).repeat_interleave(30, dim=0)
    raw += 0.1 * torch.randn(300, 12, generator=generator)
    found = suspects.compare(raw, torch.arange(10).repeat_interleave(30), (12, 32, 10), 32, 200)
    assert found["auc"] > 0.95
    assert found["precision"] > 0.7
    assert found["suggested"] > 0.7
    assert "tiny: AUC" in suspects.report({"tiny": found})


def test_agreement_is_the_chance_that_a_changed_one_comes_first() -> None:
    score = torch.tensor([0.9, 0.1, 0.8, 0.3, 0.2], dtype=torch.float64)
    told = suspects.agreement(score, torch.tensor([0, 3]))
    assert told == pytest.approx({"auc": 5 / 6, "precision": 0.5})  # 0.8 is before 0.3, all else is in order


def test_the_page_says_what_was_measured() -> None:
    page = faithfulness_page.PAGE.read_text()
    results = faithfulness_page.load()
    assert page == filled(page, results, faithfulness_page.BLOCKS)
    assert not results["faithfulness"]["quick"]


def test_one_digit_asked_about_in_five_ways() -> None:
    figure = five_answers.figure(steps=20)
    panels = [axes for axes in figure.axes if axes.containers]
    assert [len(axes.containers[0]) for axes in panels] == [10] * 5


def test_a_margin_is_the_log_of_the_odds() -> None:
    model, images, classes = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    chance = model(images).double().softmax(dim=1)[torch.arange(5), classes]
    torch.testing.assert_close(five_answers.margins_of(model, images, classes), (chance / (1 - chance)).log())

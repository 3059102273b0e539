"""Which test inputs are drawn, and what they are called."""

import pytest
import torch

from dualform.errors import QueryError, UnknownName
from dualform.experiments.cases import PaperCase, select_named, select_paper_cases
from tests.experiments.images import two_tasks


def test_the_first_of_its_class_that_is_right() -> None:
    on = two_tasks()
    said = on[0].test.labels.clone()
    said[6] = 0  # the first six is mistaken
    (case,) = select_paper_cases([PaperCase(0, 6, "4")], on, [said, said])
    assert (case.index, case.true, case.predicted, case.name) == (16, 6, 6, "first-6")


def test_a_mistake_of_the_kind_told_before_any_other() -> None:
    on = two_tasks()
    said = on[0].test.labels.clone()
    said[1], said[11] = 8, 3
    (case,) = select_paper_cases([PaperCase(0, 1, "20", taken_for=3)], on, [said, said])
    assert (case.index, case.predicted, case.name) == (11, 3, "first-1-as-3")
    said[11] = 1
    (case,) = select_paper_cases([PaperCase(0, 1, "20", taken_for=3)], on, [said, said])
    assert (case.index, case.predicted) == (1, 8)
    assert case.title == "first: first 1, taken for first 8"


def test_without_any_that_fits_the_first_of_its_class() -> None:
    on = two_tasks()
    right, wrong = on[0].test.labels, torch.full_like(on[0].test.labels, 9)
    assert select_paper_cases([PaperCase(0, 1, "20", taken_for=3)], on, [right, right])[0].index == 1
    assert select_paper_cases([PaperCase(1, 4, "9")], on, [right, wrong])[0].index == 4


def test_inputs_by_name() -> None:
    on = two_tasks()
    said = [task.test.labels for task in on]
    first, second = select_named(["12", "second:3"], on, said)
    assert (first.task.name, first.index, first.true) == ("first", 12, 2)
    assert (second.name, second.true) == ("second-input-3", 3)


@pytest.mark.parametrize("name", ["25", "-1", "six", "first:", "first:99", ""])
def test_no_such_input(name: str) -> None:
    on = two_tasks()
    with pytest.raises(QueryError, match="a number below 25"):
        select_named([name], on, [task.test.labels for task in on])


def test_no_such_task() -> None:
    on = two_tasks()
    with pytest.raises(UnknownName, match="no task 'third'; choose from 'first', 'second'"):
        select_named(["third:1"], on, [task.test.labels for task in on])

"""Image sets as tasks: what is trained on, and by which numbers it goes."""

import torch
from torch.testing import assert_close

from dualform.experiments.tasks import training_images
from tests.experiments.images import image_set, two_tasks


def test_the_first_four_fifths_are_trained_on_and_give_mean_and_deviation() -> None:
    first, _ = two_tasks()
    assert len(first.train) == 40
    assert_close(first.train.raw, image_set("first").train.raw[:40])
    assert_close(first.train.images.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(first.train.images.std(), torch.tensor(1.0))
    ink = first.train.raw.float()
    assert_close(first.test.images, (first.test.raw.float() - ink.mean()) / ink.std())


def test_ids_go_on_through_all_tasks() -> None:
    first, second = two_tasks()
    assert (first.train.first_id, second.train.first_id) == (0, 40)
    assert_close(training_images([first, second])[second.train.first_id + 3], second.train.raw[3])

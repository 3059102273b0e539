"""Several threads ask, train and retrain at once: random numbers are one for all of torch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import dualform
from dualform.store import InMemory
from tests.recipe.trainings import assert_same_state, recipe_of


def test_threads_do_not_draw_each_others_random_numbers(tmp_path: Path) -> None:
    recipe = recipe_of("dropout", "AdamW", {"lr": 0.01})
    whole = recipe.train(tmp_path, 12, every=4, keep="snapshots")
    left_out = dualform.load(tmp_path, recipe).retrain(without={"label": 1})
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()

    def work(number: int) -> None:
        if number % 3 == 0:
            assert dualform.load(tmp_path, recipe, cache=0).verify().ok
        elif number % 3 == 1:
            assert_same_state(dualform.load(tmp_path, recipe).retrain(without={"label": 1}), left_out)
        else:
            assert_same_state(recipe.train(InMemory(), 12), whole)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(18)))
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()) == (deterministic, threads)

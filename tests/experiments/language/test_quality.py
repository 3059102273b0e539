"""The measurement, against counting by hand."""

import numpy as np
import pytest
import torch

from dualform.experiments.language.quality import TOP, measure, sample_prompts
from tests.experiments.language.conftest import Case

pytestmark = pytest.mark.slow


def test_shares_are_those_of_counting_positions(case: Case) -> None:
    quality = measure(case.memory, case.trained.model, case.text, case.test)
    model, ids = case.trained.model.eval(), case.text.ids
    prompts = sample_prompts(case.test, seed=0)
    assert quality.queries == len(prompts)
    token, following, near_token, near_following, any_token, any_following = (0.0,) * 6
    directions = torch.nn.functional.normalize(model.embedding.weight.detach(), dim=1)
    for prompt in prompts:
        with torch.no_grad():
            expected = int(model(prompt[None])[0][0, -1].argmax())
        table = case.memory.attend(model, prompt[None], rows=-1)["lstm.l0"].top(TOP, per="position")
        token += np.mean([ids[p] == int(prompt[-1]) for p in table["position"]])
        following += np.mean([ids[p + 1] == expected for p in table["position"]])
        nearness = (directions[torch.from_numpy(ids[:-1])] @ directions[prompt[-1]]).numpy()
        near = shares_of_nearest(nearness, ids[:-1] == int(prompt[-1]), ids[1:] == expected)
        near_token, near_following = near_token + near[0], near_following + near[1]
        any_token += np.mean(ids == int(prompt[-1]))
        any_following += np.mean(ids == expected)
    for shares, counted in (
        (quality.attention, (token, following)),
        (quality.embedding, (near_token, near_following)),
        (quality.anywhere, (any_token, any_following)),
    ):
        assert (shares.token, shares.following) == pytest.approx([one / len(prompts) for one in counted])


def shares_of_nearest(nearness: np.ndarray, hits: np.ndarray, following: np.ndarray) -> tuple[float, float]:
    """The TOP nearest positions; of those that tie at the end, their mean."""
    bar = np.sort(nearness)[-TOP]
    above, level = nearness > bar + 1e-6, np.abs(nearness - bar) <= 1e-6
    left = TOP - above.sum()
    return tuple((one[above].sum() + left * one[level].mean()) / TOP for one in (hits, following))

"""Prompts: what is shown is what a naive sum over all keys says."""

import pytest
import torch

from dualform.errors import QueryError
from dualform.experiments.language.answers import ask
from dualform.text import to_plain
from tests.experiments.language.conftest import Case

pytestmark = pytest.mark.slow

PROMPT = "the Lamb a little d"


def test_the_best_passage_is_around_the_position_with_the_highest_sum(case: Case) -> None:
    answer = ask(case.memory, case.trained.model, case.text, PROMPT, most=2)
    spotlight = case.memory.attend(case.trained.model, ids(case), rows=-1)["lstm.l0"]
    totals = spotlight.total(by="position")  # another way through the library: sums of keys, not of weights
    best = totals["position"][totals["total"].argmax()]
    assert answer.layers["lstm.l0"].summed[0].marks[0].position == best
    assert to_plain(answer.prompt) == "the Lamb a little [d]"
    slot = spotlight.top(1)
    single = answer.layers["lstm.l0"].single
    assert single is not None
    assert (single[0].marks[0].position, single[0].step) == (slot["position"][0], slot["step"][0])


def test_what_is_expected_next_are_the_models_probabilities(case: Case) -> None:
    answer = ask(case.memory, case.trained.model, case.text, PROMPT)
    with torch.no_grad():
        probabilities = torch.softmax(case.trained.model(ids(case))[0][0, -1], dim=0)
    assert answer.expected[0].token == case.text.vocabulary[int(probabilities.argmax())]
    assert answer.expected[0].probability == pytest.approx(float(probabilities.max()))
    assert [one.probability for one in answer.expected] == sorted(
        (o.probability for o in answer.expected), reverse=True
    )


def test_a_merged_memory_gives_the_same_sums(case: Case) -> None:
    full, merged = (ask(memory, case.trained.model, case.text, PROMPT) for memory in (case.memory, case.merged))
    assert merged.layers["lstm.l0"].single is None
    for one, other in zip(full.layers["lstm.l0"].summed, merged.layers["lstm.l0"].summed, strict=True):
        assert (one.start, one.visits, one.title) == (other.start, other.visits, other.title)
        assert one.score == pytest.approx(other.score, rel=2e-3)  # stored in half precision, once or often


def test_prompts_have_to_be_readable(case: Case) -> None:
    for prompt in ("", "Lamb ß", "a" * 10_000):
        with pytest.raises(QueryError):
            ask(case.memory, case.trained.model, case.text, prompt)


def ids(case: Case) -> torch.Tensor:
    return torch.tensor([[case.text.vocabulary.index(token) for token in PROMPT]])

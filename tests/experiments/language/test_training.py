"""Language models in training: every token in its place, the state carried on, perplexity as defined."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from dualform.experiments.language.training import TEXT, Streams, perplexity
from dualform.text import Text
from tests.experiments.language.conftest import HYPERPARAMETERS, Case

pytestmark = pytest.mark.slow


def text_of(length: int) -> Text:
    return Text(np.arange(length) % 5, tuple("abcde"), separator="")


def test_an_epoch_reads_every_stream_in_order() -> None:
    text = text_of(4 * 21 + 1)
    streams = Streams(text, HYPERPARAMETERS)
    steps = [streams.batch(step) for step in range(6)]
    read = torch.cat([batch["position"] for batch in steps[:3]], dim=1)  # (batch, 3 spans)
    assert read.tolist() == [list(range(first, first + 21)) for first in (0, 21, 42, 63)]
    assert steps[3]["position"].tolist() == steps[0]["position"].tolist()
    for batch in steps:
        assert batch["token"].tolist() == text.ids[batch["position"].numpy()].tolist()
        assert batch["target"].tolist() == text.ids[batch["position"].numpy() + 1].tolist()
        assert batch["id"].tolist() == batch["position"][:, 0].tolist()


@pytest.mark.parametrize("length", [2, 5, 9, 20])
def test_short_texts_have_fewer_streams(length: int) -> None:
    streams = Streams(text_of(length), HYPERPARAMETERS)
    for batch in (streams.batch(step) for step in range(HYPERPARAMETERS.steps)):
        assert batch["token"].numel() >= 1
        assert int(batch["position"].max()) < length - 1


def test_the_model_learns_and_says_so(case: Case) -> None:
    noted = case.trained.perplexity
    assert [step for step, _ in noted] == [20, 40]
    assert noted[-1][1] < noted[0][1] < len(case.text.vocabulary)


def test_perplexity_is_that_of_each_token_after_all_before_it(case: Case) -> None:
    ids = torch.from_numpy(case.test.ids)
    case.trained.model.eval()
    with torch.no_grad():
        logits, _ = case.trained.model(ids[None, :-1])
    expected = math.exp(float(F.cross_entropy(logits[0], ids[1:])))
    assert perplexity(case.trained.model, case.test) == pytest.approx(expected, rel=1e-5)


def test_the_run_holds_everything_to_ask_it_again(case: Case) -> None:
    assert case.memory.tags == {"id": "int", "position": "int"}
    assert case.merged.tags == {"position": "int"}
    assert case.memory.layers == ["lstm.l0"]
    assert Text.load(case.path / "full" / TEXT).ids.tolist() == case.text.ids.tolist()
    rebuilt = case.memory.model(HYPERPARAMETERS.network(len(case.text.vocabulary)))
    for name, parameter in case.trained.model.named_parameters():
        assert_close(dict(rebuilt.named_parameters())[name], parameter)


def test_recording_does_not_change_what_is_learnt(case: Case) -> None:
    """Dropout draws from the generator everybody shares: both recordings have to see the same numbers."""
    twice = [memory.model(HYPERPARAMETERS.network(len(case.text.vocabulary))) for memory in (case.memory, case.merged)]
    for one, other in zip(twice[0].parameters(), twice[1].parameters(), strict=True):
        assert_close(one, other, rtol=0, atol=0)

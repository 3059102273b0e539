"""Models of Hugging Face, tagged `id=(batch,)`: recorded, certified, asked, muted; every tag is held to a brute force.

Not recordable as they are, and left out with `exclude=`: layers whose weight a model uses without calling them. What no
kind knows (bare parameters, stacked experts) is skipped by the recorder itself, as always.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform.store import InMemory
from tests.recorder.brute_force import changed_rows, recorded_tags

pytest.importorskip("transformers")

from tests.recorder.huggingface_models import BATCH, CASES, PARTLY, VOCABULARY, Batch, Case

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of what is skipped, and transformers' own
STEPS = 3


def loss_of(output: Any) -> Tensor:
    loss: Tensor = output["loss"] if output.get("loss") is not None else output["logits_per_image"].diagonal().sum()
    return loss


def trained(case: Case) -> tuple[nn.Module, dualform.Recorder, InMemory, Batch]:
    """A model that was recorded for some steps of AdamW, tagged as the README says."""
    torch.manual_seed(0)
    model, batch, run = case.make().train(), case.batch(), InMemory()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with dualform.record(model, optimizer, run, exclude=case.exclude) as recorder:
        for _ in range(STEPS):
            recorder.tag(id=torch.arange(BATCH))
            loss = loss_of(model(**batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, recorder, run, batch


def changed(batch: Batch, example: int) -> Batch:
    """The same batch, but for one example."""
    other = {name: tensor.clone() for name, tensor in batch.items()}
    for name, tensor in other.items():
        if tensor.is_floating_point():
            tensor[example] += torch.randn_like(tensor[example])
        elif tensor.dim() > 1 and name != "attention_mask":
            tensor[example] = (tensor[example] - 2) % (VOCABULARY - 3) + 3  # every token is another one
    return other


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_hugging_face(name: str) -> None:
    model, recorder, run, batch = trained(CASES[name])
    assert recorder.notes == []
    memory = dualform.load(run)
    assert memory.steps == STEPS
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    attributed, _ = PARTLY.get(name, (0.99, ""))
    assert memory.coverage.snapshots_only == 0.0
    assert attributed <= memory.coverage.attributed, str(memory.coverage)

    changes = [partial(model, **changed(batch, example)) for example in range(BATCH)]
    by_example = changed_rows(model, memory.layers, partial(model, **batch), changes)
    assert {layer for layer in memory.layers if memory.slots(layer)} == {*by_example}  # T5 never calls its `shared`
    for layer, rows in by_example.items():
        tags = recorded_tags(run, layer)
        assert len(tags) == STEPS * len(rows)
        for row, tag in zip(STEPS * rows, tags, strict=True):
            assert set(row) <= {tag}, layer
    assert sum(all(rows) for rows in by_example.values()) > len(memory.layers) / 2  # most rows show whose they are

    spotlight = memory.attend(model, batch)
    for layer in by_example:
        shown = spotlight[layer].top(2, per="id")
        assert {*shown["id"].tolist()} <= {*range(BATCH), None}
    muted = memory.without(id=1).model(model).eval()
    with torch.no_grad():
        assert not torch.equal(loss_of(muted(**batch)), loss_of(model.eval()(**batch)))

"""What slots of one use of a tied weight add to the output of another, against a dense loop with a weight a use."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform import Output, Top, Total
from dualform.errors import UnknownName
from dualform.store import InMemory
from tests.tied_models import LABELS, MODELS, OPTIMIZERS, WORDS, Trained, trained

run_of = cache(trained)
every = pytest.mark.parametrize(
    ("model", "optimizer"), [(model, optimizer) for model in MODELS for optimizer in OPTIMIZERS]
)


def output(run: Trained, layer: str, queries: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """What the module of a layer makes of queries, with these weights by their own names; without others, nothing."""
    if isinstance(run.model.get_submodule(layer), nn.Embedding):
        return queries @ weights["weight"]
    result = queries @ weights["weight"].mT if "weight" in weights else torch.zeros(1, 1).double()
    return result + weights.get("bias", torch.zeros(1).double())


@every
def test_contributions_are_those_of_the_pieces_of_a_dense_loop(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    spotlight = run.memory.attend(run.model, torch.arange(WORDS))
    for name in run.memory.layers:
        layer, own = spotlight[name], {own: p for (user, own), p in run.names.items() if user == name}
        direction = torch.randn(WORDS, layer.output().shape[1]).double()
        for slots_of in (name, *layer.shares_with):
            totals = layer.contribution(direction, slots_of=slots_of).total(by="label")
            for label in range(LABELS):
                tag = slots_of, label
                pieces = {o: run.reference.pieces[p].get(tag) for o, p in own.items()}
                added = output(run, name, layer.queries, {o: p.weight for o, p in pieces.items() if p is not None})
                expected = (added * direction).sum(dim=1)
                found = torch.from_numpy(totals.where(label=label)["total"])
                assert_close(found, expected, rtol=1e-9, atol=1e-9)


@every
def test_initial_part_and_all_contributions_are_the_output(model: str, optimizer: str) -> None:
    run = run_of(model, optimizer)
    for view in (run.memory, run.memory.without(label=2), run.memory.until(3)):
        spotlight = view.attend(run.model, torch.arange(WORDS))
        for name in view.layers:
            layer = spotlight[name]
            own = layer.contribution(1)
            total = own.initial() + torch.from_numpy(own.total()["total"])
            for other in layer.shares_with:
                total = total + torch.from_numpy(layer.contribution(1, slots_of=other).total()["total"])
            assert_close(total, own.output(), rtol=1e-9, atol=1e-9)
            assert_close(own.output(), (layer.output() * own.directions).sum(dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(data=st.data())
def test_a_slot_taken_out_takes_its_contribution_with_it(optimizer: str, data: st.DataObject) -> None:
    """Any slots, along any direction: of the embedding in the head, and the other way round."""
    run = run_of("head with a bias", optimizer)
    name, other = data.draw(st.sampled_from([("head", "wte"), ("wte", "head")]))
    muted = {"step": data.draw(st.integers(0, 5)), "label": data.draw(st.integers(0, LABELS - 1))}
    queries = run.memory.attend(run.model, torch.arange(WORDS))[name].queries
    layer, left = (view.attend({name: queries})[name] for view in (run.memory, run.memory.without(**muted)))
    direction = torch.randn(layer.output().shape[1], generator=torch.Generator().manual_seed(0)).double()
    taken = torch.zeros(WORDS).double()
    for slots_of in (name, other):
        table = layer.contribution(direction, slots_of=slots_of).top(run.memory.slots(slots_of))
        taken += torch.tensor([table.where(query=query, **muted)["score"].sum() for query in range(WORDS)])
    assert_close((layer.output() - left.output()) @ direction, taken, rtol=1e-9, atol=1e-9)


def test_tables_have_the_tags_of_the_slots_that_were_asked_about() -> None:
    run = run_of("head", "SGD")
    layer = run.memory.attend(run.model, torch.arange(WORDS))["head"]
    contribution = layer.contribution(2, slots_of="wte")
    assert contribution.slots_of == "wte"
    assert repr(contribution) == f"LayerContribution('head': {WORDS} queries, slots of 'wte')"
    top, per_label, total, found = contribution.collect(Top(3), Top(1, per="label"), Total(by="label"), Output())
    assert set(top.columns) == {"query", "score", "slot", "step", "coefficient", "label"}
    assert len(per_label) == WORDS
    assert len(total) == LABELS * WORDS
    assert_close(found, layer.output())


def test_only_layers_that_share_a_weight_can_be_asked() -> None:
    run = run_of("a chain", "Adam")
    spotlight = run.memory.attend(run.model, torch.arange(WORDS))
    assert {name: spotlight[name].shares_with for name in spotlight} == {
        "wte": [], "a": ["b"], "b": ["a", "c"], "c": ["b"], "head": [],
    }  # fmt: skip
    with pytest.raises(UnknownName, match="no layer that shares a weight with 'a' 'c'; choose from 'b'"):
        spotlight["a"].contribution(0, slots_of="c")
    assert spotlight["a"].contribution(0, slots_of="a").slots_of == "a"


def test_the_head_of_a_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=8, n_embd=12, n_layer=2, n_head=2, tie_word_embeddings=True, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    model, run = transformers.GPT2LMHeadModel(config).double(), InMemory()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    layers = ["lm_head", "transformer.wte", "transformer.wpe"]
    recorder = dualform.record(model, optimizer, run, layers=layers, dtype="float64").start()
    for _ in range(4):
        ids = torch.randint(23, (3, 8))
        recorder.tag(id=torch.arange(3))
        optimizer.zero_grad()
        logits = model(ids).logits
        F.cross_entropy(logits[:, :-1].reshape(-1, 23), ids[:, 1:].reshape(-1)).backward()
        optimizer.step()
    recorder.stop()
    memory = dualform.load(run)
    certificate = memory.verify()
    assert all(certificate.layers[name].ok(1e-9) for name in layers), str(certificate)

    inputs = torch.randint(23, (2, 8))
    head = memory.attend(model, {"input_ids": inputs}, rows=-1)["lm_head"]
    assert head.shares_with == ["transformer.wte"]
    own, tied = head.contribution(5), head.contribution(5, slots_of="transformer.wte")
    parts = own.initial(), *(torch.from_numpy(one.total()["total"]) for one in (own, tied))
    logits = model.eval()(inputs).logits[:, -1, 5].detach()
    assert_close(sum(parts[1:], start=parts[0]), logits, rtol=1e-9, atol=1e-9)
    assert parts[2].abs().max() > 1e-6  # what the embedding's slots have added is no rounding
    assert {*tied.top(3, per="id")["id"].tolist()} <= {0, 1, 2}

"""Language models: embeddings, LSTMs and decoders, token by token, with the state carried from step to step."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from dualform.errors import NotRecorded, RecordingError, UnexplainedGradient
from tests.recorder.loops import assert_exact, record, sgd
from tests.recorder.sequences import HIDDEN, VOCABULARY, WIDTH, Model, Unrolled

LR, SPAN, BATCH, STEPS = 0.3, 5, 3, 4


def stretches(text: Tensor) -> Any:
    """Tokens, targets and positions of each step, (time, batch): streams that are read on."""
    length = (len(text) - 1) // BATCH
    for step in range(STEPS):
        positions = torch.arange(SPAN)[:, None] + step % 2 * SPAN + torch.arange(BATCH) * length
        yield text[positions], text[positions + 1], positions


def train(path: Path, batch_first: bool, padding: int | None = None, **options: Any) -> tuple[Model, Unrolled]:
    """The model, recorded, and its unrolled twin beside it."""
    text = torch.randint(VOCABULARY, (2 * SPAN * BATCH + BATCH + 1,))
    model = Model(batch_first, padding)
    twin = Unrolled(model)
    optimizer = sgd(model, lr=LR, momentum=0.0)
    state = twin_state = None
    with record(model, optimizer, path, **options) as recorder:
        for rows in stretches(text):
            tokens, targets, positions = (one.T if batch_first else one for one in rows)
            recorder.tag(position=positions)
            logits, state = model(tokens, state)
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(end_dim=1), targets.flatten()).backward()
            optimizer.step()
            state = tuple(one.detach() for one in state)
            twin_state = twin.step(rows, twin_state, LR)
    return model, twin


def map_of(layer: str, weights: dict[str, Tensor]) -> Tensor:
    """A layer's parameters as the one matrix (d_out, d_in) they are."""
    if layer == "embedding":
        return weights["embedding.weight"].mT
    named = [w for name, w in weights.items() if w.dim() == 2]
    return torch.cat(named, dim=1)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_every_layer_is_its_initial_part_and_its_tokens(tmp_path: Path, batch_first: bool, padding: int | None) -> None:
    model, twin = train(tmp_path / "run", batch_first, padding)
    memory = assert_exact(tmp_path / "run", model, STEPS)
    assert memory.layers == ["embedding", "lstm.l0", "lstm.l1", "decoder"]
    assert memory.unrecorded == []
    for name, parameter in model.named_parameters():
        assert_close(parameter.detach(), twin.parameters[name].detach(), rtol=1e-9, atol=1e-12)
    chosen = {0, 1, 7, 12}
    for layer in memory.layers:
        for view, wanted in ((memory, set(range(99))), (memory.where(position=sorted(chosen)), chosen)):
            change = map_of(layer, view.weights(layer)) - map_of(layer, twin.initial_of(layer))
            assert_close(change, twin.map(layer, LR, wanted), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
def test_spotlights_of_tokens(tmp_path: Path, batch_first: bool) -> None:
    model, twin = train(tmp_path / "run", batch_first)
    memory = dualform.load(tmp_path / "run")
    prompt = torch.randint(VOCABULARY, (1, 6) if batch_first else (6, 1))
    spotlight = memory.attend(model, prompt)
    for layer in memory.layers:
        slots, found = twin.slots[layer], spotlight[layer]
        scores = torch.stack(slots.keys) @ found.queries.mT  # (slots, queries)
        for query in range(6):
            sums = torch.zeros(99).double()
            for score, position in zip(scores[:, query], slots.positions, strict=True):
                sums[position] += score
            table = found.top(5, per="position").where(query=query)
            assert_close(torch.from_numpy(table["score"]), sums[table["position"].tolist()])
            assert_close(torch.from_numpy(table["score"]), sums[sorted(set(slots.positions))].topk(5).values)
    with torch.no_grad():
        assert_close(spotlight["decoder"].output(), model(prompt)[0].flatten(end_dim=1))
        assert_close(spotlight["embedding"].output(), model.embedding(prompt).flatten(end_dim=1))


def test_the_last_token_only(tmp_path: Path) -> None:
    model, _ = train(tmp_path / "run", batch_first=True)
    memory = dualform.load(tmp_path / "run")
    prompts = torch.randint(VOCABULARY, (2, 6))
    everything, last = memory.attend(model, prompts), memory.attend(model, prompts, rows=-1)
    for layer in memory.layers:
        assert_close(last[layer].queries, everything[layer].queries[[5, 11]])


def test_time_travel_and_muting(tmp_path: Path) -> None:
    model, _ = train(tmp_path / "run", batch_first=True)
    memory = dualform.load(tmp_path / "run")
    prompt = torch.randint(VOCABULARY, (1, 6))
    with torch.no_grad():
        assert_close(memory.model(model)(prompt)[0], model(prompt)[0])
        begun = memory.until(0).model(model)
        assert_close(begun(prompt)[0], memory.without(position=list(memory_positions(memory))).model(model)(prompt)[0])


def memory_positions(memory: dualform.Memory) -> set[int]:
    query = {"decoder": torch.zeros(1, HIDDEN).double()}
    return set(memory.attend(query)["decoder"].total(by="position")["position"].tolist())


def test_merged_and_full_memories_agree_on_sums(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, _ = train(tmp_path / "full", batch_first=True, layers=["lstm.*", "decoder"])
    torch.manual_seed(5)
    train(tmp_path / "merged", batch_first=True, layers=["lstm.*", "decoder"], merge="position")
    full, merged = dualform.load(tmp_path / "full"), dualform.load(tmp_path / "merged")
    prompt = torch.randint(VOCABULARY, (2, 6))
    for layer in full.layers:
        tables = [memory.attend(model, prompt)[layer].top(4, per="position") for memory in (full, merged)]
        for column in ("query", "position", "visits"):
            assert tables[0][column].tolist() == tables[1][column].tolist()
        assert_close(torch.from_numpy(tables[0]["score"]), torch.from_numpy(tables[1]["score"]))
        assert tables[0]["visits"].max() == STEPS // 2
    assert merged.slots("decoder") == 2 * SPAN * BATCH < full.slots("decoder")


def test_what_a_merged_memory_cannot_answer(tmp_path: Path) -> None:
    model, _ = train(tmp_path / "run", batch_first=True, layers="lstm.l1", merge="position")
    memory = dualform.load(tmp_path / "run")
    layer = memory.attend(model, torch.randint(VOCABULARY, (1, 2)))["lstm.l1"]
    assert "keys summed by position" in str(memory)
    assert memory.tags == {"position": "int"}
    assert memory.verify().keys_only
    for question in (
        layer.top, layer.timeline, layer.output, layer.initial,
        lambda: layer.top(3, per="position", absolute=True),
        lambda: layer.total(by="position", absolute=True),
        lambda: layer.total(by="position", valued=True),
        lambda: memory.weights("lstm.l1"),
        lambda: memory.without(position=3).model(model),
        lambda: memory.until(1),
        lambda: memory.where(step=1),
    ):  # fmt: skip
        with pytest.raises(NotRecorded, match="merge"):
            question()


def test_a_merged_memory_goes_back_to_where_it_was_synced(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.Adam(model.parameters())  # keys need no algebra
    keys = torch.randn(4, 2, 3).double()
    with record(model, optimizer, tmp_path / "run", merge="word") as recorder:
        for step, key in enumerate(keys):
            recorder.tag(word=["fox", "wolf" if step else "lamb"])
            optimizer.zero_grad()
            model(key).square().sum().backward()
            optimizer.step()
            if step == 1:
                assert recorder.sync() == 2
    memory, query = dualform.load(tmp_path / "run"), torch.randn(1, 3).double()
    for view, steps in ((memory, 4), (memory.until(2), 2)):
        table = view.attend({"": query})[""].top(9, per="word")
        expected = {"fox": keys[:steps, 0], "lamb": keys[:1, 1], "wolf": keys[1:steps, 1]}
        assert sorted(table["word"].tolist()) == sorted(expected)
        for row in table.rows():
            of_word = expected[row["word"]]
            assert row["visits"] == len(of_word)
            assert_close(torch.tensor(row["score"]).double(), (of_word.sum(dim=0) @ query[0]))


def test_merging_needs_its_tag(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = sgd(model)
    raises = pytest.raises(RecordingError, match="merged by tag 'position', which is missing")
    with raises, record(model, optimizer, tmp_path / "run", merge="position") as recorder:
        recorder.tag(id=[0])
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()


def test_a_layer_whose_rows_were_flattened(tmp_path: Path) -> None:
    class Flattened(Model):
        def forward(self, tokens: Tensor, state: Any = None) -> Any:
            output, state = self.lstm(self.embedding(tokens), state)
            return self.decoder(output.flatten(end_dim=1)), state

    model = Flattened(batch_first=True)
    optimizer = sgd(model)
    tokens = torch.randint(VOCABULARY, (2, 5))
    with record(model, optimizer, tmp_path / "run") as recorder:
        recorder.tag(position=torch.arange(10).view(2, 5), stream=torch.tensor([[0], [1]]).expand(2, 5))
        F.cross_entropy(model(tokens)[0], torch.randint(VOCABULARY, (10,))).backward()
        optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 1)
    query = {"decoder": torch.ones(1, HIDDEN).double()}
    found = memory.attend(query)["decoder"].total(by=("position", "stream"))
    assert found["stream"].tolist() == [0] * 5 + [1] * 5


def test_a_fused_lstm_is_skipped_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, HIDDEN))
    optimizer = sgd(model)
    recorder = record(model, optimizer, tmp_path / "run")
    assert "dualform.unfuse" in recorder.skipped["1"]
    with pytest.raises(RecordingError, match="unfuse"):
        record(model, optimizer, tmp_path / "run", layers="1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_norm": 1.0}, "max_norm"), ({"scale_grad_by_freq": True}, "scale_grad"), ({"sparse": True}, "sparse")],
)
def test_embeddings_that_have_no_dual_form(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, **options), nn.Linear(3, 2))
    recorder = record(model, sgd(model), tmp_path / "run")
    assert reason in recorder.skipped["0"]
    assert recorder.layers == ["1"]


def test_a_tied_decoder_is_skipped(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False))
    model[2].weight = model[0].weight
    recorder = record(model, sgd(model), tmp_path / "run")
    assert recorder.layers == ["1"]
    assert set(recorder.skipped) == {"0", "2"}


def test_a_weight_that_is_used_without_its_embedding_shows(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)).double()
    optimizer = sgd(model)
    with pytest.raises(UnexplainedGradient, match="'0'"), record(model, optimizer, tmp_path / "run"):
        hidden = model(torch.randint(5, (4,)))
        (hidden.sum() + model[0].weight.square().sum()).backward()  # type: ignore[operator]
        optimizer.step()


def test_a_frozen_part_of_an_lstm_stays_as_it_is(tmp_path: Path) -> None:
    model = Model(batch_first=True)
    model.lstm.weight_hh_l0.requires_grad_(False)
    model.lstm.bias_ih_l1.requires_grad_(False)
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randint(VOCABULARY, (2, 5)))[0].square().mean().backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 3)

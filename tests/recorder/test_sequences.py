"""Language models: embeddings, LSTMs and decoders, token by token, with the state carried from step to step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import NotRecorded, QueryError, RecordingError, UnexplainedGradient
from tests.dense import Dense
from tests.optimizers import make, options
from tests.recorder.loops import assert_exact, record, sgd
from tests.recorder.sequences import HIDDEN, VOCABULARY, WIDTH, Model, Shape, Slots, Unrolled

SPAN, BATCH, STEPS = 5, 3, 4


@dataclass(frozen=True)
class Trained:
    """A recorded model, and everything there is to compare it with."""

    model: Model
    slots: dict[str, Slots]
    reference: Dense
    states: list[dict[str, Tensor]]  # after 0, 1, ... steps


def stretches(text: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, targets and positions of each step, (time, batch): streams that are read on, in two epochs."""
    length = (len(text) - 1) // BATCH
    for step in range(STEPS):
        positions = torch.arange(SPAN)[:, None] + step % 2 * SPAN + torch.arange(BATCH) * length
        yield text[positions], text[positions + 1], positions


def train(
    path: Path, shape: Shape = Shape(), clip: float = 1e6, kind: str = "SGD", lr: float = 0.3,  # noqa: B008
    given_options: dict[str, Any] | None = None, **options: Any,
) -> Trained:  # fmt: skip
    """The model, recorded, and beside it the dense reference, fed with gradients token by token."""
    text = torch.randint(VOCABULARY, (2 * SPAN * BATCH + BATCH + 1,))
    model, twin = Model(shape), Unrolled(shape)
    optimizer = make(kind, model.parameters(), lr, given_options or {})
    trained = Trained(model, twin.slots, Dense(model, kind), [copy_of(model)])
    trained.reference.start_warm(optimizer)  # Adagrad's fresh state is not empty
    groups = dict.fromkeys(dict(model.named_parameters()), optimizer.param_groups[0])
    state = None
    with record(model, optimizer, path, **options) as recorder:
        for rows in stretches(text):
            gradients = twin.gradients(model, rows, state)
            tokens, targets, positions = (one.T if shape.batch_first else one for one in rows)
            recorder.tag(position=positions)
            logits, state = model(tokens, state)
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(end_dim=1), targets.flatten()).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            factor = min(1.0, clip / (float(norm) + 1e-6))
            scaled = {name: {at: factor * g for at, g in by_tag.items()} for name, by_tag in gradients.items()}
            trained.reference.step(scaled, groups)
            optimizer.step()
            trained.states.append(copy_of(model))
            state = tuple(one.detach() for one in state)  # truncated back-propagation
    return trained


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


shapes = st.builds(
    Shape, batch_first=st.booleans(), padding=st.sampled_from([None, 2]), layers=st.integers(1, 2), bias=st.booleans()
)


@given(shapes, options(), st.sampled_from([0.01, 1e6]), st.integers(0, 999))
def test_every_layer_is_its_initial_part_and_its_tokens(
    shape: Shape, optimizer: tuple[str, dict[str, Any]], clip: float, seed: int
) -> None:
    torch.manual_seed(seed)
    kind, given_options = optimizer
    with TemporaryDirectory() as path:
        trained = train(Path(path) / "run", shape, clip, kind, 0.3 if kind == "SGD" else 0.01, given_options)
        if kind != "SGD":
            assume(trained.reference.condition > 1e-5)
        memory = assert_exact(Path(path) / "run", trained.model, STEPS)
        assert memory.unrecorded == []
        for layer in memory.layers:
            for name, weight in memory.weights(layer).items():
                assert_close(weight, trained.reference.weight(name), rtol=1e-9, atol=1e-9)
            for name, weight in memory.where(position=7).weights(layer).items():
                assert_close(weight, trained.reference.weight(name, [7]), rtol=1e-9, atol=1e-9)
            for name, weight in memory.until(2).weights(layer).items():
                assert_close(weight, trained.states[2][name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_contributions_of_tokens_add_up(tmp_path: Path, kind: str) -> None:
    trained = train(tmp_path / "run", kind=kind, lr=0.01)
    memory, model = dualform.load(tmp_path / "run"), trained.model
    tokens, target = torch.randint(VOCABULARY, (2, 4)), [3, 5]
    spotlight = memory.attend(model, tokens, rows=-1)
    for layer in memory.layers:
        contribution = spotlight[layer].contribution(target)
        found = contribution.initial() + torch.from_numpy(contribution.total()["total"])
        assert_close(found, contribution.output(), rtol=1e-9, atol=1e-9)
    logits = model(tokens)[0][:, -1].detach()
    assert_close(found, logits[[0, 1], target], rtol=1e-9, atol=1e-9)  # of the decoder, the last layer
    with pytest.raises(QueryError, match="say whose target it is, such as rows=-1"):
        memory.attend(model, tokens)["decoder"].contribution(target)


@pytest.mark.parametrize("batch_first", [False, True])
def test_spotlights_of_tokens(tmp_path: Path, batch_first: bool) -> None:
    trained = train(tmp_path / "run", Shape(batch_first))
    memory, model = dualform.load(tmp_path / "run"), trained.model
    assert memory.layers == ["embedding", "lstm.l0", "lstm.l1", "decoder"]
    prompt = torch.randint(VOCABULARY, (1, 6) if batch_first else (6, 1))
    spotlight = memory.attend(model, prompt)
    for layer in memory.layers:
        slots, found = trained.slots[layer], spotlight[layer]
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
    model = train(tmp_path / "run").model
    memory = dualform.load(tmp_path / "run")
    prompts = torch.randint(VOCABULARY, (2, 6))
    everything, last = memory.attend(model, prompts), memory.attend(model, prompts, rows=-1)
    for layer in memory.layers:
        assert_close(last[layer].queries, everything[layer].queries[[5, 11]])


def test_time_travel_and_muting(tmp_path: Path) -> None:
    model = train(tmp_path / "run").model
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
    model = train(tmp_path / "full", layers=["lstm.*", "decoder"]).model
    torch.manual_seed(5)
    train(tmp_path / "merged", layers=["lstm.*", "decoder"], merge="position")
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
    model = train(tmp_path / "run", layers="lstm.l1", merge="position").model
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
        table = view.attend({"linear": query})["linear"].top(9, per="word")
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

    model = Flattened(Shape())
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_language_model(tmp_path: Path, backend: str) -> None:
    model = Model(Shape())
    compiled = torch.compile(model, backend=backend)
    optimizer = sgd(model)
    with record(compiled, optimizer, tmp_path / "run") as recorder:  # type: ignore[arg-type]
        for _ in range(2):
            recorder.tag(position=torch.arange(10).view(2, 5))
            optimizer.zero_grad()
            compiled(torch.randint(VOCABULARY, (2, 5)))[0].square().mean().backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 2)


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")
def test_activation_checkpointing(tmp_path: Path) -> None:
    model = Model(Shape())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(2):
            optimizer.zero_grad()
            inputs = model.embedding(torch.randint(VOCABULARY, (2, 5)))
            output, _ = checkpoint(model.lstm, inputs, use_reentrant=False)
            model.decoder(output).square().mean().backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 2)


def test_a_fused_lstm_is_skipped_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, HIDDEN))
    optimizer = sgd(model)
    recorder = record(model, optimizer, tmp_path / "run")
    assert "dualform.unfuse" in recorder.skipped["1"]
    with pytest.raises(RecordingError, match="unfuse"):
        record(model, optimizer, tmp_path / "run", layers="1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_norm": 1.0}, "max_norm"), ({"scale_grad_by_freq": True}, "scale_grad")],
)
def test_embeddings_that_have_no_dual_form(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, **options), nn.Linear(3, 2))
    recorder = record(model, sgd(model), tmp_path / "run")
    assert reason in recorder.skipped["0"]
    assert recorder.layers == ["1"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, of Adagrad
@pytest.mark.parametrize("optimizer", [sgd, torch.optim.Adagrad])
def test_sparse_gradients_of_an_embedding(tmp_path: Path, optimizer: Any) -> None:
    model = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 3)).double()
    stepped = optimizer(model.parameters()) if optimizer is torch.optim.Adagrad else optimizer(model)
    with record(model, stepped, tmp_path / "run") as recorder:
        for i in range(6):
            stepped.zero_grad()
            model(torch.randint(20, (5, 3))).square().mean().backward()
            assert model[0].weight.grad.is_sparse  # type: ignore[union-attr]
            stepped.step()
            if i == 2:
                recorder.sync()  # with a momentum that is sparse, too
    assert_exact(tmp_path / "run", model, 6)


def test_a_weight_that_is_used_without_its_embedding_shows(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)).double()
    optimizer = sgd(model)
    with pytest.raises(UnexplainedGradient, match="'0'"), record(model, optimizer, tmp_path / "run"):
        hidden = model(torch.randint(5, (4,)))
        (hidden.sum() + model[0].weight.square().sum()).backward()  # type: ignore[operator]
        optimizer.step()


def test_a_frozen_part_of_an_lstm_stays_as_it_is(tmp_path: Path) -> None:
    model = Model(Shape())
    model.lstm.weight_hh_l0.requires_grad_(False)
    model.lstm.bias_ih_l1.requires_grad_(False)
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randint(VOCABULARY, (2, 5)))[0].square().mean().backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 3)

"""The projections of attention, recorded: against a dense float64 loop, and against F.linear written out."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import QueryError, RecordingError
from dualform.slots import PassRows, Slots
from dualform.store import Run
from tests.dense import Dense, example_gradients
from tests.recorder.brute_force import recorded_tags
from tests.recorder.loops import assert_exact, record, sgd

EMBED, HEADS, CLASSES, TIME, EXAMPLES = 4, 2, 3, 3, 6
FEW = settings(max_examples=max(settings().max_examples // 4, 4))
LAYER = "attention.in_proj"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    "Adam": {"lr": 0.05, "weight_decay": 0.05},
}


@dataclass(frozen=True)
class Shape:
    """Of a model: what attends to what, and how."""

    calls: str = "self"
    batch_first: bool = True
    bias: bool = True
    need_weights: bool = False
    extra: bool = False  # bias_k, bias_v and a zero

    @property
    def options(self) -> dict[str, Any]:
        sizes = {"kdim": 3, "vdim": 2} if self.calls == "apart" else {}
        extra = {"add_bias_kv": self.extra, "add_zero_attn": self.extra}
        return {"batch_first": self.batch_first, "bias": self.bias, **sizes, **extra}


SHAPES = st.builds(
    Shape, st.sampled_from(["self", "cross", "three", "apart"]), st.booleans(), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip


class Model(nn.Module):
    """Attention and a head. Inputs are (batch, time, embed) whatever the layout inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attention = nn.MultiheadAttention(EMBED, HEADS, **shape.options)
        self.head = nn.Linear(EMBED, CLASSES)
        self.double()
        if shape.bias:
            nn.init.normal_(self.attention.in_proj_bias)
        dualform.unfuse(self)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values in the module's layout."""
        x = x if self.shape.batch_first else x.transpose(0, 1)
        other = (x if self.shape.batch_first else x.transpose(0, 1))[:, 1:].flip(-1)
        other = other if self.shape.batch_first else other.transpose(0, 1)
        return {
            "self": (x, x, x),
            "cross": (x, other, other),
            "three": (x, other, other.tanh()),
            "apart": (x, other[..., :3], other[..., :2].tanh()),
        }[self.shape.calls]

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.attention(*self.inputs(x), need_weights=self.shape.need_weights)
        logits: Tensor = self.head(rows.mean(dim=1 if self.shape.batch_first else 0))
        return logits


@dataclass(frozen=True)
class Trained:
    model: Model
    reference: Dense
    memory: dualform.Memory
    first: tuple[dict[str, Tensor], Tensor, Tensor]  # parameters, inputs and labels of the first step


def train(path: Path, shape: Shape, kind: str = "SGD", steps: int = 5) -> Trained:
    """Steps in two chapters, beside a dense reference that is split by label."""
    model, twin = Model(shape), Model(shape)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **OPTIMIZERS[kind])
    inputs, labels = torch.randn(EXAMPLES, TIME, EMBED, dtype=torch.float64), torch.arange(EXAMPLES) % CLASSES
    reference, first = Dense(model, kind), None
    with record(model, optimizer, path) as recorder:
        for step in range(steps):
            ids = torch.randperm(EXAMPLES)[:4]
            recorder.tag(id=ids, label=labels[ids])
            twin.load_state_dict(model.state_dict())
            gradients = example_gradients(twin, inputs[ids], labels[ids], labels[ids].tolist(), 1.0)
            first = first or (dict(twin.state_dict()), inputs[ids], labels[ids])
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[ids]), labels[ids]).backward()
            reference.step(gradients, dict.fromkeys(gradients, optimizer.param_groups[0]))
            optimizer.step()
            if step == 2:
                recorder.sync()
    assert first is not None
    assert recorder.notes == []
    return Trained(model, reference, dualform.load(path), first)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@FEW
@given(SHAPES, st.sampled_from([*OPTIMIZERS]), st.integers(0, 2**16))
def test_a_training_is_rebuilt_muted_and_attributed(shape: Shape, kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    with TemporaryDirectory() as directory:
        run = train(Path(directory) / "run", shape, kind)
        memory, parameters = run.memory, dict(run.model.named_parameters())
        certificate = memory.verify()
        assert certificate.ok, str(certificate)
        assert memory.layers == [LAYER, "attention.out_proj", "head"]
        covered = {name for layer in memory.layers for name in memory.weights(layer)}
        assert covered == {name for name in parameters if "bias_k" not in name and "bias_v" not in name}
        for layer in memory.layers:
            for name, weight in memory.weights(layer).items():
                assert_close(weight, parameters[name].detach())
        for label in range(CLASSES):
            others = {*range(CLASSES)} - {label}
            for name, weight in memory.without(label=label).weights(LAYER).items():
                assert_close(weight, run.reference.weight(name, others))
        groups = memory.group_weights(by="label").model(run.model, without=[1])
        for name in memory.weights(LAYER):
            assert_close(groups.get_parameter(name).detach(), run.reference.weight(name, {0, 2}))
        check_outputs(run, torch.randn(2, TIME, EMBED, dtype=torch.float64))


def check_outputs(run: Trained, inputs: Tensor) -> None:
    """The layer's output is that of its weights, and what slots have added is all of it."""
    layer = run.memory.attend(run.model, inputs)[LAYER]
    expected = torch.cat([output.detach().flatten(end_dim=-2) for _, output in projections(run.model, inputs)])
    made = expected != 0  # asked for all the rows, the layer says what a query would be as a key, too
    assert_close(layer.output() * made, expected)
    directions = torch.randn(len(layer.queries), 3 * EMBED, dtype=torch.float64)
    contribution = layer.contribution(directions)
    assert_close(contribution.output(), (layer.output() * directions).sum(dim=1))
    table = contribution.total(by="label")
    totals = [table.where(query=query)["total"].sum() for query in range(len(layer.queries))]
    assert_close(contribution.initial() + torch.tensor(totals, dtype=torch.float64), contribution.output())


def projections(model: Model, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and outputs of each product, (..., d_in) and (..., 3 embed), with zeros where it has none."""
    attention, qkv = model.attention, model.inputs(inputs)
    bias = attention.in_proj_bias if model.shape.bias else torch.zeros(3 * EMBED, dtype=torch.float64)
    if model.shape.calls == "self":
        return [(qkv[0], F.linear(qkv[0], attention.in_proj_weight, bias))]
    made, widths = [], [x.shape[-1] for x in qkv]
    weights: Any = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
    if model.shape.calls != "apart":
        weights = attention.in_proj_weight.chunk(3)
    for part, (x, weight) in enumerate(zip(qkv, weights, strict=True)):
        output = F.pad(x @ weight.mT + bias.chunk(3)[part], (part * EMBED, (2 - part) * EMBED))
        place = (sum(widths[:part]), sum(widths[part + 1 :]))
        made.append((F.pad(x, place) if model.shape.calls == "apart" else x, output))
    if model.shape.calls == "cross":
        made[1:] = [(made[1][0], made[1][1] + made[2][1])]
    return made


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("calls", ["self", "cross", "three", "apart"])
def test_keys_and_values_are_those_of_explicit_products(tmp_path: Path, calls: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    run = train(tmp_path / "run", Shape(calls, batch_first), steps=1)
    twin = Model(Shape(calls, batch_first))
    parameters, inputs, labels = run.first
    twin.load_state_dict(parameters)
    products = projections(twin, inputs)
    logits = attended(twin, *explicit(products))
    assert_close(logits, twin(inputs))
    errors = torch.autograd.grad(F.cross_entropy(logits, labels), [output for _, output in products])
    stored = Run(tmp_path / "run")
    slots = Slots(stored, stored.layers[LAYER])
    block = slots.block(PassRows(0, slice(0, len(slots))))
    keys = torch.cat([key.detach().reshape(-1, slots.layer.d_in) for key, _ in products])
    assert_close(block.keys.pair(torch.eye(slots.layer.d_in, dtype=torch.float64)).mT, keys)
    assert_close(block.values, torch.cat([error.reshape(-1, 3 * EMBED) for error in errors]))


def explicit(products: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Queries, keys and values, out of products that are zero elsewhere."""
    outputs = [output for _, output in products]
    return [outputs[min(part, len(outputs) - 1)].chunk(3, dim=-1)[part] for part in range(3)]


def attended(model: Model, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The rest of the model, head by head."""
    if not model.shape.batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    heads = []
    for head in range(HEADS):
        part = slice(head * EMBED // HEADS, (head + 1) * EMBED // HEADS)
        scores = q[..., part] @ k[..., part].mT / (EMBED // HEADS) ** 0.5
        heads.append(scores.softmax(dim=-1) @ v[..., part])
    rows = model.attention.out_proj(torch.cat(heads, dim=-1))
    logits: Tensor = model.head(rows.mean(dim=1))
    return logits


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("bias", "extra"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("calls", ["self", "cross", "three", "apart"])
def test_tags_are_those_of_the_rows(tmp_path: Path, calls: str, bias: bool, extra: bool, batch_first: bool) -> None:
    model = Model(Shape(calls, batch_first, bias, extra=extra))
    optimizer, ids = sgd(model), torch.tensor([7, 3, 9, 5])
    with record(model, optimizer, tmp_path / "run") as recorder:
        recorder.tag(id=ids)
        model(torch.randn(4, TIME, EMBED, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    assert recorder.notes == []

    def of_rows(time: int) -> list[int]:
        repeated = ids[:, None].expand(-1, time)
        return (repeated if batch_first else repeated.mT).flatten().tolist()

    others = {"self": 0, "cross": 1, "three": 2, "apart": 2}[calls]
    assert recorded_tags(tmp_path / "run", LAYER) == of_rows(TIME) + others * of_rows(TIME - 1)
    assert recorded_tags(tmp_path / "run", "attention.out_proj") == of_rows(TIME)


def test_an_attention_that_is_the_model(tmp_path: Path) -> None:
    model = dualform.nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64)
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(3):
            recorder.tag(id=torch.arange(5))
            x = torch.randn(TIME, 5, EMBED, dtype=torch.float64)
            optimizer.zero_grad()
            model(x, x, x)[0].square().mean().backward()
            optimizer.step()
    assert recorder.notes == []
    assert assert_exact(tmp_path / "run", model, 3).layers == ["in_proj", "out_proj"]
    assert recorded_tags(tmp_path / "run", "in_proj") == 3 * TIME * [*range(5)]


# Whole models


TRANSFORMERS: dict[str, Any] = {
    "encoder layer": lambda **o: nn.TransformerEncoderLayer(EMBED, HEADS, 6, **o),
    "encoder": lambda **o: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(EMBED, HEADS, 6, **o), 2, enable_nested_tensor=False
    ),
    "decoder layer": lambda **o: nn.TransformerDecoderLayer(EMBED, HEADS, 6, **o),
    "transformer": lambda **o: nn.Transformer(EMBED, HEADS, 1, 1, 6, **o),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # not with time first
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_are_recorded_whole(tmp_path: Path, name: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    model = dualform.unfuse(TRANSFORMERS[name](batch_first=batch_first, dtype=torch.float64))
    optimizer = sgd(model)
    shapes = [(4, TIME, EMBED), (4, TIME + 2, EMBED)][: 1 if "encoder" in name else 2]

    def inputs() -> list[Tensor]:
        made = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        return made if batch_first else [x.transpose(0, 1) for x in made]

    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            recorder.tag(id=torch.arange(4))
            optimizer.zero_grad()
            model(*inputs()).square().mean().backward()
            optimizer.step()
    assert {*recorder.coverage.parameters("attributed")} == {*dict(model.named_parameters())}
    memory = assert_exact(tmp_path / "run", model, 4)
    for layer in memory.layers:
        runs = [(tag, len([*same])) for tag, same in groupby(recorded_tags(tmp_path / "run", layer))]
        assert [tag for tag, _ in runs] == [0, 1, 2, 3] * (len(runs) // 4)
        assert {length for _, length in runs} <= ({TIME, TIME + 2} if batch_first else {1})
    spotlight = memory.attend(model, tuple(inputs()))
    attention = {layer for layer in memory.layers if layer.endswith("in_proj")}
    assert attention
    assert attention <= {*spotlight}  # in evaluation, without gradients, taps see them all the same


def test_evaluation_between_steps_with_padding(tmp_path: Path) -> None:
    """Torch would make nested tensors, and leave recorded layers out."""
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 6, dropout=0.0, batch_first=True, dtype=torch.float64)
    model = dualform.unfuse(nn.TransformerEncoder(layer, 1))
    optimizer, padding = sgd(model), torch.tensor([[False] * TIME, [False] * (TIME - 1) + [True]])
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(2))
            x = torch.randn(2, TIME, EMBED, dtype=torch.float64)
            optimizer.zero_grad()
            trained = model(x, src_key_padding_mask=padding)
            trained[~padding].square().mean().backward()
            model.eval()
            with torch.no_grad():
                assert_close(model(x, src_key_padding_mask=padding), trained.detach())
            model.train()
            optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 2)
    asked = memory.attend(model, {"src": x, "src_key_padding_mask": padding})
    assert_close(asked["layers.0.self_attn.in_proj"].queries, x.reshape(-1, EMBED))


def test_adam_and_autocast(tmp_path: Path) -> None:
    """Gradients that autocast rounds are explained, in self- and in cross-attention."""
    torch.manual_seed(0)
    for calls in ("self", "cross", "three", "apart"):
        model = Model(Shape(calls)).float()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with dualform.record(model, optimizer, tmp_path / calls):
            for _ in range(4):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(torch.randn(8, TIME, EMBED)).float().square().mean()
                loss.backward()
                optimizer.step()
        memory = dualform.load(tmp_path / calls)
        assert memory.verify().ok, str(memory.verify())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
@pytest.mark.parametrize("calls", ["self", "cross", "apart"])
def test_a_compiled_model(tmp_path: Path, calls: str) -> None:
    torch.compiler.reset()
    model = Model(Shape(calls))
    compiled, optimizer = torch.compile(model, backend="eager"), sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(3):
            recorder.tag(id=torch.arange(5))
            optimizer.zero_grad()
            compiled(torch.randn(5, TIME, EMBED, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
    assert recorder.notes == []
    assert assert_exact(tmp_path / "run", model, 3).layers == [LAYER, "attention.out_proj", "head"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(tmp_path: Path, use_reentrant: bool) -> None:
    model = Model(Shape("cross", batch_first=False))
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(2):
            recorder.tag(id=torch.arange(5))
            optimizer.zero_grad()
            x = torch.randn(5, TIME, EMBED, dtype=torch.float64, requires_grad=True)
            checkpoint(model, x, use_reentrant=use_reentrant).square().mean().backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 2)
    assert recorded_tags(tmp_path / "run", LAYER) == 2 * (TIME + TIME - 1) * [*range(5)]


def test_a_fused_attention_is_skipped_with_what_to_do(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(EMBED, HEADS, 6)
    recorder = record(model, sgd(model), tmp_path / "run")
    assert recorder.layers == ["linear1", "linear2", "norm1", "norm2"]
    assert "dualform.unfuse(model)" in recorder.skipped["self_attn"]
    assert "dualform.unfuse(model)" in recorder.skipped["self_attn.out_proj"]
    with pytest.raises(RecordingError, match="dualform.unfuse"):
        record(model, sgd(model), tmp_path / "run", layers="self_attn.out_proj")


def test_bare_parameters_are_accounted_for(tmp_path: Path) -> None:
    model = Model(Shape(extra=True))
    recorder = record(model, sgd(model), tmp_path / "run")
    rows = {row["parameter"]: row for row in recorder.coverage.table.rows()}
    assert {name for name, row in rows.items() if row["covered"] == "accounted for"} == {
        "attention.bias_k", "attention.bias_v",
    }  # fmt: skip
    assert "does something else with it" in rows["attention.bias_k"]["reason"]


def test_a_run_is_asked_with_an_unfused_model(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Shape())
    fused = nn.Module()
    fused.attention, fused.head = nn.MultiheadAttention(EMBED, HEADS, batch_first=True), nn.Linear(EMBED, CLASSES)
    with pytest.raises(QueryError, match="pass dualform.unfuse"):
        run.memory.attend(fused.double(), torch.randn(1, TIME, EMBED, dtype=torch.float64))

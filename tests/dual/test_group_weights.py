"""The weights due to groups of slots: the pieces of a dense reference, and all that `without` takes away."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dualform
from dualform.dual import group_weights as module
from dualform.dual.group_weights import GroupWeights
from dualform.errors import NotRecorded, QueryError, UnknownName
from dualform.slots import Slots
from tests.dense import INITIAL
from tests.optimizers import options
from tests.recipes import Recipe, mlp, recipes, recorded
from tests.recorder import test_sequences as sequences
from tests.recorder.loops import network, record, sgd
from tests.recorder.sequences import Shape

pytestmark = pytest.mark.slow

KINDS = ["SGD", "Adam", "AdamW", "RMSprop"]
FEW = settings(max_examples=settings().max_examples // 6)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def assert_same_models(found: nn.Module, expected: nn.Module, tolerance: float = 1e-9) -> None:
    parameters = dict(found.named_parameters())
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(parameters[name], parameter, rtol=tolerance, atol=tolerance)


def piece(trained: Any, name: str, tag: Any) -> Tensor:
    """What the examples of one tag have added, by the dense reference; of a pass that was thrown away, nothing."""
    pieces = trained.reference.pieces[name]
    weight: Tensor = pieces[tag].weight if tag in pieces else torch.zeros_like(pieces[INITIAL].weight)
    return weight


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_the_pieces_of_a_dense_loop(kind: str) -> None:
    @FEW
    @given(recipes([kind]))
    def holds(recipe: Recipe) -> None:
        trained, memory = recorded(recipe)
        weights = memory.group_weights(by=("label", "id"))
        assert weights.groups.columns == ["label", "id"]
        for layer in memory.layers:
            for group, row in enumerate(weights.groups.rows()):
                for name, share in weights.added(layer, [group]).items():
                    assert_close(share, piece(trained, name, row["id"]))
            everything, added = weights.added(layer, range(len(weights.groups))), memory.added(layer)
            for name, weight in memory.weights(layer).items():
                assert_close(everything[name] + trained.reference.pieces[name][INITIAL].weight, weight)
                assert_close(everything[name], added[name])

    holds()


@FEW
@given(
    st.builds(Shape, padding=st.sampled_from([None, 2]), layers=st.integers(1, 2), bias=st.booleans()),
    options(KINDS),
    st.integers(0, 999),
)
def test_shares_of_embeddings_and_lstms(shape: Shape, optimizer: tuple[str, dict[str, Any]], seed: int) -> None:
    torch.manual_seed(seed)
    kind, given_options = optimizer
    with TemporaryDirectory() as path:
        trained = sequences.train(Path(path) / "run", shape, 0.5, kind, 0.01, given_options)
        assume(kind == "SGD" or trained.reference.condition > 1e-5)
        memory = dualform.load(Path(path) / "run")
    weights = memory.group_weights(by="position")
    for layer in memory.layers:
        for group, position in enumerate(weights.groups["position"].tolist()):
            for name, added in weights.added(layer, [group]).items():
                assert_close(added, piece(trained, name, position))
    groups = [1, 4]
    muted = memory.without(position=weights.groups["position"][groups])
    assert_same_models(weights.model(trained.model, groups), muted.model(trained.model))


@FEW
@given(recipes(KINDS), st.data())
def test_a_model_without_groups_is_that_of_the_view_without_them(recipe: Recipe, data: st.DataObject) -> None:
    trained, memory = recorded(recipe)
    view = memory.until(data.draw(st.integers(1, len(recipe.steps))))
    if data.draw(st.booleans()):
        view = view.without(id=data.draw(st.sampled_from(range(len(trained.labels)))))
    weights = view.group_weights(by="label")
    assert_same_models(weights.model(trained.model, []), view.model(trained.model))
    labels = weights.groups["label"].tolist()
    groups = data.draw(st.lists(st.sampled_from(range(len(labels)))))  # also one that is named twice
    muted = view.without(label=[labels[group] for group in groups])
    assert_same_models(weights.model(trained.model, groups), muted.model(trained.model))
    whole, rest = view.weights("0"), muted.weights("0")
    for name, added in weights.added("0", groups).items():
        assert_close(whole[name] - added, rest[name])


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_groups_can_be_muted_in_some_layers_only(tmp_path: Path, kind: str) -> None:
    model, memory = visited(tmp_path / "run", kind)
    weights, muted = memory.group_weights(by="label"), memory.without(label=2).model(model)
    found = weights.model(model, [2], layers=["2"]).state_dict()
    for name, expected in model.state_dict().items():
        assert_close(found[name], muted.state_dict()[name] if name.startswith("2.") else expected)
        assert name.startswith("2.") or torch.equal(found[name], expected)  # as it was, to the last bit


def visited(
    path: Path, kind: str = "SGD", trained: torch.dtype = torch.float64, **options: Any
) -> tuple[nn.Sequential, dualform.Memory]:
    """A run whose examples come again, some of them under two labels, in several shards."""
    torch.manual_seed(2)
    model = network(nn.Tanh()).to(trained)
    optimizer = sgd(model) if kind == "SGD" else torch.optim.Adam(model.parameters())
    data = torch.randn(9, 5, dtype=trained)
    with record(model, optimizer, path, **options) as recorder:
        for number in range(20):
            ids = torch.randint(9, (8,))
            labels = (ids + (ids == 5) * number) % 3
            recorder.tag(id=ids, label=labels, task=["odd" if one % 2 else "even" for one in ids.tolist()])
            optimizer.zero_grad()
            F.cross_entropy(model(data[ids]), labels).backward()
            optimizer.step()
            if number % 6 == 5:
                recorder.sync()
    return model, dualform.load(path)


def assert_groups_are_views(weights: GroupWeights, memory: dualform.Memory) -> None:
    """Each share is what a view of its slots alone has added."""
    for group, row in enumerate(weights.groups.rows()):
        for layer in memory.layers:
            for name, added in memory.where(**row).added(layer).items():
                assert_close(weights.added(layer, [group])[name], added)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"_COLLECTED_ROWS": 9},
        {"_COLLECTED_ROWS": 10, "_PIECE_NUMBERS": 1},
        {"_COLLECTED_BYTES": 300},
        {"_ROW_VISITS": 2},
    ],
)
def test_slots_may_be_read_in_any_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    _, memory = visited(tmp_path / "run")
    stretches = noted_stretches(monkeypatch)
    monkeypatch.setattr("dualform.slots.blocks._BLOCK_NUMBERS", 40)
    for name, limit in limits.items():
        monkeypatch.setattr(module, name, limit)
    weights = memory.group_weights()
    assert weights.groups.columns == ["task", "label"]
    first = [(rows, visits) for layer, rows, visits in stretches if layer == "0"]
    assert (len(first) == 1) == (not limits)
    assert all(rows <= limits.get("_COLLECTED_ROWS", 18) for rows, _ in first)
    assert all(visits <= rows * limits.get("_ROW_VISITS", 64) + 4 for rows, visits in first)
    assert sum(visits for _, visits in first) == memory.slots("0")
    assert_groups_are_views(weights, memory)
    assert_groups_are_views(memory.until(13).group_weights(by=("label", "id")), memory.until(13))


def noted_stretches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Layer, rows and slots of each stretch, as they come."""
    found: list[tuple[str, int, int]] = []
    collect = module.GroupWeightsFold._collect

    def noted(self: module.GroupWeightsFold) -> Any:
        found.append((self._slots.layer.name, len(self._rows), sum(map(len, self._blocks))))
        return collect(self)

    monkeypatch.setattr(module.GroupWeightsFold, "_collect", noted)
    return found


def test_visits_to_a_key_are_one_row_of_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine examples, one of them under three labels; the second layer's keys change with the first."""
    _, memory = visited(tmp_path / "run")
    stretches = noted_stretches(monkeypatch)
    memory.group_weights(by="label")
    assert stretches == [("0", 11, 160), ("2", 160, 160)]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_single_precision_and_less(tmp_path: Path, kind: str, stored: str) -> None:
    """Muted by subtraction or summed up, a model is the same, however coarse the slots are."""
    model, memory = visited(tmp_path / "run", kind, torch.float32, dtype=stored)
    weights = memory.group_weights(by="label")
    for groups in ([0], [1, 2], [0, 1, 2]):
        assert_same_models(weights.model(model, groups), memory.without(label=groups).model(model), tolerance=1e-6)
    assert weights.added("0", [1])["0.weight"].dtype == torch.float64
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert weights.nbytes == numbers * (8 + 3 * 4)  # what three groups have added is kept in float32
    for name, found in weights.model(model, []).state_dict().items():
        assert torch.equal(found, model.state_dict()[name])


def test_parameters_are_rounded_to_the_precision_of_the_run(tmp_path: Path) -> None:
    _, memory = visited(tmp_path / "run", trained=torch.float32, dtype="float32")
    for parameter in memory.group_weights(by="label").model(network(nn.Tanh()), [1]).parameters():
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter, parameter.float().double())


def test_tokens_of_several_shards(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)).double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            tokens, labels = torch.randint(7, (6,)), torch.randint(2, (6,))
            recorder.tag(label=labels)
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
            recorder.sync()
    memory = dualform.load(tmp_path / "run")
    assert_groups_are_views(memory.group_weights(by="label"), memory)


class Heads(nn.Module):
    """A head for each task, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 4).double()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3).double() for name in ("fashion", "mnist", "unused")})

    def forward(self, inputs: Tensor, task: str) -> Tensor:
        outputs: Tensor = self.heads[task](self.trunk(inputs).tanh())
        return outputs


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_groups_have_the_same_number_in_all_layers(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = Heads()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for number in range(8):
            task, labels = ("mnist", "fashion")[number % 2], torch.randint(3, (6,))
            recorder.tag(task=task, label=labels + 10 * (number % 2))
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(6, 5).double(), task), labels).backward()
            optimizer.step()
    memory = dualform.load(tmp_path / "run")
    weights = memory.group_weights()
    assert list(zip(weights.groups["task"], weights.groups["label"], strict=True)) == [
        ("fashion", 10), ("fashion", 11), ("fashion", 12), ("mnist", 0), ("mnist", 1), ("mnist", 2),
    ]  # fmt: skip
    assert_groups_are_views(weights, memory)
    assert not any(added.any() for added in weights.added("heads.mnist", [0, 1, 2]).values())
    assert_same_models(weights.model(model, [0, 1, 2]), memory.without(task="fashion").model(model))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_view_has_shares_of_its_own_slots_only(tmp_path: Path, kind: str) -> None:
    """Groups are those of the run: one that has no slot in the view has added nothing."""
    model, memory = visited(tmp_path / "run", kind)
    view = memory.until(17).without(label=1)
    weights = view.group_weights(by=("label", "id"))
    assert len(weights.groups) == len(memory.group_weights(by=("label", "id")).groups) == 11
    assert_groups_are_views(weights, view)
    ones = np.flatnonzero(weights.groups["label"] == 1).tolist()
    assert not any(added.any() for layer in view.layers for added in weights.added(layer, ones).values())
    assert_same_models(weights.model(model, []), view.model(model))
    assert_same_models(weights.model(model, ones, layers=["2"]), view.model(model))


def test_what_would_take_too_much_room_is_refused_before_slots_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, memory = visited(tmp_path / "run")
    weights = memory.group_weights(by="label")
    parameters = 5 * 4 + 4 + 4 * 3 + 3
    assert weights.nbytes == parameters * 8 * (1 + 3)
    needed = weights.nbytes + 3 * 12 * (5 * 4 + 4)
    assert memory.group_weights(by="label", max_bytes=needed).nbytes == weights.nbytes
    monkeypatch.setattr(Slots, "stream", None)
    with pytest.raises(QueryError, match=r"3 groups by 'label' .* group by fewer values, .* memory.without"):
        memory.group_weights(by="label", max_bytes=needed - 1)


@pytest.mark.parametrize("options", [{"values": False}, {"merge": "id"}])
def test_keys_alone_have_no_group_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    _, memory = visited(tmp_path / "run", **options)
    with pytest.raises(NotRecorded, match="keys only"):
        memory.group_weights(by="id", max_bytes=0)  # nor would more room help
    with pytest.raises(NotRecorded, match="keys only"):
        memory.added("0")


def test_names_that_are_not_known(tmp_path: Path) -> None:
    model, memory = visited(tmp_path / "run")
    weights = memory.group_weights(by="label")
    for unknown in (
        lambda: weights.added("1", [0]),
        lambda: weights.added("0", [3]),
        lambda: weights.model(model, [-1]),
        lambda: weights.model(model, [0], layers=["1"]),
        lambda: memory.group_weights(by="lable"),
        lambda: memory.added("1"),
    ):
        with pytest.raises(UnknownName, match=r"no (layer|group|tag) .*; choose from"):
            unknown()
    with pytest.raises(QueryError, match="by is a tag or a tuple of tags"):
        memory.group_weights(by=())
    with pytest.raises(QueryError, match="recorded with a '0.weight' of shape"):
        weights.model(mlp((5, 6, 3), bias=True), [0])


def test_layers_are_named_as_their_turn_comes(tmp_path: Path) -> None:
    _, memory = visited(tmp_path / "run")
    told: list[str] = []
    weights = memory.group_weights(by="label", progress=told.append)
    assert told == memory.layers == weights.layers
    assert repr(weights) == "GroupWeights(3 groups by label, 2 layers, 0.0 MB)"
    np.testing.assert_equal(weights.groups["label"], [0, 1, 2])

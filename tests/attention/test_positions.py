"""Questions about whole inputs and about places: images through convolutions, and sequences in any layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import dualform
from dualform.errors import QueryError
from tests.kinds.test_every_kind import Plain

EXAMPLES, TIME, WIDTH = 6, 5, 3


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0))
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(3 * 5 * 2, 2)).double()


IMAGES = torch.randn(EXAMPLES, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[dualform.Memory, nn.Module]:
    """Every example is seen twice, in two chapters."""
    path, model = tmp_path_factory.mktemp("images") / "run", convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for step in range(4):
            ids = torch.arange(3) + 3 * (step % 2)
            recorder.tag(id=ids)
            optimizer.zero_grad()
            F.cross_entropy(model(IMAGES[ids]), ids % 2).backward()
            optimizer.step()
            if step == 1:
                recorder.sync()
    return dualform.load(path), model


def patches(maps: Tensor) -> Tensor:
    """By torch's own unfold: (examples, height, width, entries)."""
    unfolded: Tensor = F.unfold(maps, (2, 3), stride=(1, 2), padding=(1, 0)).mT.unflatten(1, (5, 2))
    return unfolded


def test_the_best_slots_say_where_they_are(images: tuple[dualform.Memory, nn.Module]) -> None:
    memory, model = images
    query = IMAGES[:1] + 0.1
    table = memory.attend(model, query)["0"].top(7)
    queries = patches(query).flatten(0, 2)
    for row in table.rows():
        keys = patches(IMAGES[[row["id"]]])[0, row["y"], row["x"]]
        assert row["score"] == pytest.approx(float(queries[row["query"]] @ keys), rel=1e-9)


def test_pairs_of_positions_are_a_dense_loops(images: tuple[dualform.Memory, nn.Module]) -> None:
    memory, model = images
    inputs = IMAGES[2:4] * 2
    layer = memory.attend(model, inputs)["0"]
    for number in (0, 1):
        of_five = np.einsum("ijk,lmk->ijlm", patches(inputs)[number], patches(IMAGES)[5]) * 2  # it was seen twice
        np.testing.assert_allclose(layer.position_pairs(number, id=5), of_five, rtol=1e-9, atol=1e-9)
    of_all = 2 * np.einsum("ijk,nlmk->ijlm", patches(inputs)[0], patches(IMAGES))
    np.testing.assert_allclose(layer.position_pairs(), of_all, rtol=1e-9, atol=1e-9)
    without = memory.without(id=[0, 1]).attend(model, inputs)["0"]
    of_others = 2 * np.einsum("ijk,nlmk->ijlm", patches(inputs)[0], patches(IMAGES[2:]))
    np.testing.assert_allclose(without.position_pairs(), of_others, rtol=1e-9, atol=1e-9)


def test_a_whole_image_attends_to_whole_images(images: tuple[dualform.Memory, nn.Module]) -> None:
    memory, model = images
    inputs = IMAGES[1:3] * 3
    table = memory.attend(model, inputs)["0"].per_input().top(EXAMPLES, per="id")
    expected = 2 * torch.einsum("aijk,blmk->ab", patches(inputs), patches(IMAGES))
    for row in table.rows():
        assert row["score"] == pytest.approx(float(expected[row["query"], row["id"]]), rel=1e-9)
        assert row["visits"] == 2 * 10  # twice, at ten positions


def test_inputs_that_cannot_be_told_apart_are_not_summed_up(images: tuple[dualform.Memory, nn.Module]) -> None:
    """A single image without a batch: its height is not a number of images."""
    memory, model = images
    alone = memory.attend(alone_model(model), IMAGES[0])
    pairs = memory.attend(model, IMAGES[:1])["0"].position_pairs(id=2)
    np.testing.assert_allclose(alone["0"].position_pairs(id=2), pairs)
    with pytest.raises(QueryError, match="whose rows of layer '0' are could not be found out"):
        alone["0"].per_input()
    assert "rows go by their shape" in str(memory.attend(alone_model(model), IMAGES[0], rows=0))


def alone_model(model: nn.Module) -> nn.Sequential:
    """For images without a batch."""
    return nn.Sequential(model[0], nn.ReLU(), nn.Flatten(0), model[3])  # type: ignore[index]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda m, x: m.attend(x[1], IMAGES)["0"].position_pairs(6), "there are inputs 0 to 5, not 6"),
        (lambda m, x: m.attend(x[1], IMAGES)["3"].position_pairs(), "layer '3' has no positions"),
        (lambda m, x: m.attend(x[1], IMAGES, rows=0)["0"].position_pairs(), "take all rows of a model's inputs"),
        (lambda m, x: m.attend({"0": torch.ones(2, 12)})["0"].position_pairs(), "take all rows of a model's inputs"),
        (lambda m, x: m.attend({"0": torch.ones(2, 12)})["0"].per_input(), "known only where the model is"),
        (lambda m, x: m.attend(x[1], IMAGES, rows=10), "rows=10, but an input has 10 rows in layer '0'"),
    ],
)
def test_questions_that_have_no_answer(images: tuple[dualform.Memory, nn.Module], ask: Any, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        ask(images[0], images)


class Sequences(nn.Module):
    """A table of positions, sums over time, and an output for each token; rows in any layout."""

    def __init__(self, time_first: bool, flat: bool) -> None:
        super().__init__()
        self.time_first, self.flat = time_first, flat
        self.positions = nn.Embedding(TIME, WIDTH)
        self.inner, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, time, width), or (time, batch, width) if time comes first."""
        axis = 0 if self.time_first else 1
        where = self.positions(torch.arange(x.shape[axis]))
        hidden = (x + (where[:, None] if self.time_first else where)).cumsum(axis)
        if self.flat:
            output: Tensor = self.output(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
            return output
        return self.output(hidden)

    def output(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.inner(hidden)))
        return output


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("time_first", [False, True])
@pytest.mark.parametrize("batch", [1, 3, TIME])
def test_the_last_token_is_the_last_of_each_input(tmp_path: Path, batch: int, time_first: bool, flat: bool) -> None:
    torch.manual_seed(0)
    model = Sequences(time_first, flat).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6, WIDTH, dtype=torch.float64)[:TIME, :TIME]).square().mean().backward()
            optimizer.step()
    memory, sequences = dualform.load(tmp_path / "run"), torch.randn(batch, TIME, WIDTH, dtype=torch.float64)
    inputs = sequences.transpose(0, 1) if time_first else sequences
    spotlight = memory.attend(model, inputs, rows=-1)
    assert spotlight.note is None
    last = (sequences + model.positions.weight.detach()).sum(dim=1)  # (batch, width)
    assert_close(spotlight["inner"].queries, last)
    output = model(inputs).detach()
    output = output[-1] if time_first else output[:, -1]
    assert_close(spotlight["last"].output(), output)
    contribution = spotlight["last"].contribution(2)  # follows the same outputs, and the same rows
    assert_close(contribution.output(), output[:, 2])
    assert_close(contribution.initial() + torch.from_numpy(contribution.total()["total"]), output[:, 2])
    assert spotlight["positions"].queries.argmax(dim=1).tolist() == [TIME - 1]  # of all inputs

    everything = memory.attend(model, inputs)["inner"].per_input()
    assert_close(everything.queries, (sequences + model.positions.weight.detach()).cumsum(1).sum(1))


class Packed(nn.Module):
    """Reads sequences of several lengths; the output is made of each one's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = dualform.nn.GRU(WIDTH, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.last(self.rnn(packed)[1][0])  # type: ignore[no-any-return]


def test_the_last_token_of_packed_sequences_is_the_last_of_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, lengths = Packed().double(), torch.tensor([2, 5, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, TIME, WIDTH, dtype=torch.float64), lengths).square().sum().backward()
            optimizer.step()
    memory, inputs = dualform.load(tmp_path / "run"), torch.randn(3, TIME, WIDTH, dtype=torch.float64)
    spotlight = memory.attend(model, (inputs, lengths), rows=-1)
    assert spotlight.note is None
    assert_close(spotlight["rnn.l0.ih"].queries, torch.stack([inputs[i, n - 1] for i, n in enumerate(lengths)]))
    whole = memory.attend(model, (inputs, lengths))["rnn.l0.ih"].per_input()
    assert_close(whole.queries, torch.stack([inputs[i, :n].sum(0) for i, n in enumerate(lengths)]))


class TiedByAnotherName(nn.Module):
    """A head whose own name for the embedding's weight is another one; time comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, WIDTH), Plain(WIDTH, 7)
        self.head.matrix = self.words.weight  # type: ignore[assignment]

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.words(ids).cumsum(0)))
        return output


def test_a_tied_weight_may_have_another_name_in_each_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TiedByAnotherName().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64"):
        model(torch.randint(7, (TIME, 3))).square().sum().backward()
        optimizer.step()
    ids = torch.randint(7, (TIME, 3))
    spotlight = dualform.load(tmp_path / "run").attend(model, ids, rows=-1)
    assert spotlight.note is None
    assert_close(spotlight["head"].queries, torch.tanh(model.words(ids).sum(0)).detach())


class Aside(nn.Module):
    """A layer that no output depends on, so that nothing tells whose its rows are."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.last = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.loss = self.aside(x.flip(0).reshape(-1, WIDTH)).square().sum()
        output: Tensor = self.last(x)
        return output


def test_rows_that_nothing_tells_of_are_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Aside().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run", dtype="float64"):
        output = model(torch.randn(3, TIME, WIDTH, dtype=torch.float64))
        assert model.loss is not None
        (output.sum() + model.loss).backward()
        optimizer.step()
    memory, inputs = dualform.load(tmp_path / "run"), torch.randn(3, TIME, WIDTH, dtype=torch.float64)
    spotlight = memory.attend(model, inputs, rows=-1)
    assert "'aside'" in str(spotlight.note)
    assert "'last'" not in str(spotlight.note)
    assert_close(spotlight["last"].queries, inputs[:, -1])
    everything = memory.attend(model, inputs)
    assert len(everything["last"].per_input().queries) == 3
    with pytest.raises(QueryError, match="whose rows of layer 'aside' are could not be found out"):
        everything["aside"].per_input()

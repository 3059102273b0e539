"""Packed sequences: whose their rows are, found the slow way, by changing one token and seeing which keys change."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import dualform
from dualform.errors import RecordingError
from tests.recorder.brute_force import recorded_tags
from tests.recorder.loops import assert_exact, record, sgd

WIDTH, HIDDEN, LABELS = 3, 4, 3
FEW = settings(max_examples=max(settings().max_examples // 8, 4))


class Tagger(nn.Module):
    """A label for each token: two directions, and sequences that are packed."""

    def __init__(self, kind: str = "LSTM", batch_first: bool = True, sort: bool = True, **options: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(WIDTH, HIDDEN, bidirectional=True, batch_first=batch_first, **options)
        self.head = nn.Linear(2 * HIDDEN, LABELS)
        self.batch_first, self.sort = batch_first, sort
        self.double()
        dualform.unfuse(self)

    def forward(self, inputs: Tensor, lengths: Any) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, self.batch_first, enforce_sorted=not self.sort)
        time = inputs.shape[1 if self.batch_first else 0]
        output, _ = pad_packed_sequence(self.rnn(packed)[0], self.batch_first, total_length=time)
        logits: Tensor = self.head(output)
        return logits

    def batch(self, lengths: list[int], time: int) -> Tensor:
        shape = (len(lengths), time) if self.batch_first else (time, len(lengths))
        return torch.randn(*shape, WIDTH, dtype=torch.float64)


def input_keys(model: Tagger, inputs: Tensor, lengths: Any) -> dict[str, Tensor]:
    """What of each layer's key is the input: its first entries."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[Any], None]:
        def on_keys(keys: Any) -> None:
            seen[name] = keys.data.clone()

        return on_keys

    own = [name for name in model.rnn.maps() if name in ("l0", "l0_reverse", "l0.ih", "l0_reverse.ih")]
    handles = [model.rnn.tap(name, note(name)) for name in own]
    with torch.no_grad():
        model(inputs, lengths)
    for handle in handles:
        handle.remove()
    return {f"rnn.{name}": keys[:, :WIDTH] for name, keys in seen.items()}


def expected_places(model: Tagger, inputs: Tensor, lengths: list[int]) -> dict[str, list[tuple[int, int]]]:
    """Change one token after the other: (example, time) of each row, by the layer."""
    before, places = input_keys(model, inputs, torch.tensor(lengths)), {}
    for layer, keys in before.items():
        places[layer] = [(-1, -1)] * len(keys)
    for example, length in enumerate(lengths):
        for time in range(length):
            changed = inputs.clone()
            changed[(example, time) if model.batch_first else (time, example)] += 1
            for layer, keys in input_keys(model, changed, torch.tensor(lengths)).items():
                (row,) = (keys != before[layer]).any(dim=1).nonzero()[:, 0].tolist()
                places[layer][row] = example, time
    return places


def train(model: Tagger, path: Path, batches: list[tuple[Tensor, Any]], tags: list[dict[str, Any]]) -> list[str]:
    optimizer = sgd(model)
    with record(model, optimizer, path) as recorder:
        for (inputs, lengths), of_batch in zip(batches, tags, strict=True):
            recorder.tag(**of_batch)
            optimizer.zero_grad()
            model(inputs, lengths).square().sum().backward()
            optimizer.step()
        return list(recorder.notes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("as_list", [False, True])
def test_tags_of_examples_and_of_tokens(kind: str, sort: bool, as_list: bool) -> None:
    """It is proven where torch sorts the sequences by a tensor of lengths: both can be permuted with the examples."""
    proven = sort and not as_list

    @FEW
    @given(st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=2, max_size=3), st.booleans())
    def check(lengths_of: list[list[int]], batch_first: bool) -> None:
        torch.manual_seed(0)
        batch_first |= not proven  # the head's rows, (time, batch), are then read by their shape
        model = Tagger(kind, batch_first, sort)
        lengths_of = lengths_of if sort else [sorted(lengths, reverse=True) for lengths in lengths_of]
        batches, tags, expected = [], [], dict[str, list[tuple[int, int]]]()
        for step, lengths in enumerate(lengths_of):
            inputs = model.batch(lengths, 5)
            places = expected_places(model, inputs, lengths)
            for layer, of_layer in places.items():
                expected.setdefault(layer, []).extend((10 * step + b, 10 * (10 * step + b) + t) for b, t in of_layer)
            batches.append((inputs, lengths if as_list else torch.tensor(lengths)))
            ids = 10 * step + torch.arange(3)
            tokens = 10 * ids[:, None] + torch.arange(5)  # (batch, time)
            tags.append({"id": ids, "token": tokens if batch_first else tokens.T})
        with TemporaryDirectory() as path:
            notes = train(model, Path(path) / "run", batches, tags)
            for layer, places_of in expected.items():
                assert recorded_tags(Path(path) / "run", layer, "id") == [b for b, _ in places_of]
                assert recorded_tags(Path(path) / "run", layer, "token") == [t for _, t in places_of]
            # a batch without any padding shows nothing of lengths that are no tensor
            assert not notes or not proven

    check()


def test_rows_are_looked_at_once(tmp_path: Path) -> None:
    """Other lengths in each batch need no further experiment: each further step calls the module once."""
    model, calls = Tagger(), list[int]()
    model.head.register_forward_hook(lambda *_: calls.append(1))
    batches = [(model.batch(n, 5), torch.tensor(n)) for n in ([5, 2, 3], [1, 4, 2], [3, 3, 3], [5, 1, 1])]
    train(model, tmp_path / "run", batches, [{"id": torch.arange(3)} for _ in batches])
    own = len(calls)
    calls.clear()
    train(model, tmp_path / "two", batches[:1], [{"id": torch.arange(3)}])
    assert own == len(calls) + 3


class Backwards(Tagger):
    """Packs the examples in another order than they came in."""

    def forward(self, inputs: Tensor, lengths: Any) -> Tensor:
        return super().forward(inputs.flip(0), lengths.flip(0)).flip(0)


def test_sequences_that_are_no_examples_by_their_number(tmp_path: Path) -> None:
    """What packed sequences say is not taken for granted, but looked at."""
    model = Backwards()
    model.rnn.bias_ih_l0.data.fill_(0.3)
    batches = [(model.batch(n, 5), torch.tensor(n)) for n in ([5, 2, 3], [1, 4, 2], [3, 3, 3])]
    train(model, tmp_path / "run", batches, [{"id": 10 * step + torch.arange(3)} for step in range(3)])
    expected: dict[str, list[int]] = {}
    for step, (inputs, lengths) in enumerate(batches):
        of_flipped = expected_places(model, inputs, lengths.tolist())
        for layer, places in of_flipped.items():
            expected.setdefault(layer, []).extend(10 * step + b for b, _ in places)
    for layer, ids in expected.items():
        assert recorded_tags(tmp_path / "run", layer) == ids


def test_words_that_are_all_zero_have_their_tags(tmp_path: Path) -> None:
    """Nothing comes back to a row whose output is not used, and still it is known whose it is."""
    model = Tagger(num_layers=1)
    inputs, lengths = model.batch([3, 2, 4], 4), torch.tensor([3, 2, 4])
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        recorder.tag(id=[7, 8, 9])
        model(inputs, lengths)[:, 0].square().sum().backward()
        optimizer.step()
    expected = {layer: [7 + b for b, _ in of] for layer, of in expected_places(model, inputs, [3, 2, 4]).items()}
    for layer, ids in expected.items():
        assert recorded_tags(tmp_path / "run", layer) == ids


def test_what_does_not_fit_raises_with_what_to_do(tmp_path: Path) -> None:
    model = Tagger(sort=False)
    inputs, lengths = model.batch([3, 2], 3), torch.tensor([3, 2])
    optimizer = sgd(model)
    for tag in (torch.arange(4), torch.zeros(2, 2), torch.zeros(3, 3)):
        with (
            pytest.raises(RecordingError, match=r"tag 'id' .*packed sequences, the longest of 3"),
            record(model, optimizer, tmp_path / "run", overwrite=True, provenance=False, exclude="head") as recorder,
        ):
            recorder.tag(id=tag)
            optimizer.zero_grad()
            model(inputs, lengths).sum().backward()
            optimizer.step()


def test_a_square_batch_says_which_side_is_meant(tmp_path: Path) -> None:
    model = Tagger(sort=False)
    with (
        pytest.raises(RecordingError, match=r"could be \(batch, time\) or \(time, batch\)"),
        record(model, (optimizer := sgd(model)), tmp_path / "run", provenance=False, exclude="head") as recorder,
    ):
        recorder.tag(token=torch.arange(4).view(2, 2))
        model(model.batch([2, 1], 2), torch.tensor([2, 1])).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer_name", ["SGD", "Adam"])
def test_a_tagger_is_recorded_whole_and_certified(tmp_path: Path, optimizer_name: str) -> None:
    torch.manual_seed(0)
    model = Tagger(num_layers=2, dropout=0.2, proj_size=2)
    model.head = nn.Linear(4, LABELS).double()
    optimizer: Any = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.02)
    states = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    with record(model, optimizer, tmp_path / "run") as recorder:
        assert "100% of" in str(recorder.coverage)
        for step in range(5):
            lengths = torch.randint(1, 6, (4,))
            inputs, targets = model.batch(lengths.tolist(), 5), torch.randint(LABELS, (4, 5))
            real = torch.arange(5) < lengths[:, None]
            recorder.tag(id=torch.arange(4) + 4 * (step % 2), label=torch.where(real, targets, -1))
            optimizer.zero_grad()
            F.cross_entropy(model(inputs, lengths)[real], targets[real]).backward()
            optimizer.step()
            states.append({name: p.detach().clone() for name, p in model.named_parameters()})
        assert not recorder.notes
    memory = assert_exact(tmp_path / "run", model, 5)
    assert memory.coverage.attributed == 1
    rows = sum(int(t) != -1 for t in recorded_tags(tmp_path / "run", "rnn.l0", "label"))
    assert rows == memory.slots("rnn.l0")  # no row of padding
    for layer in memory.layers:
        for name, weight in memory.until(3).weights(layer).items():
            torch.testing.assert_close(weight, states[3][name], rtol=1e-9, atol=1e-9)
    inputs, lengths = model.batch([5, 3], 5), torch.tensor([5, 3])
    for layer in memory.layers:
        found = memory.attend(model, (inputs, lengths))[layer]
        assert len(found.queries) == (2 * 5 if layer == "head" else 8)
    own = memory.model(model).eval()
    torch.testing.assert_close(own(inputs, lengths), model.eval()(inputs, lengths), rtol=1e-9, atol=1e-9)


class LastState(nn.Module):
    """A label for each sequence, from the last states of both directions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(dualform.nn, kind)(WIDTH, HIDDEN, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * HIDDEN, LABELS)
        self.double()

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        _, last = self.rnn(pack_padded_sequence(inputs, lengths, True, enforce_sorted=False))
        hidden = last[0] if isinstance(last, tuple) else last
        logits: Tensor = self.head(torch.cat([hidden[0], hidden[1]], dim=1))
        return logits


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_contributions_to_packed_rows_add_up(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = LastState(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            recorder.tag(label=torch.arange(4) % LABELS)
            optimizer.zero_grad()
            logits = model(torch.randn(4, 5, WIDTH, dtype=torch.float64), torch.randint(1, 6, (4,)))
            F.cross_entropy(logits, torch.arange(4) % LABELS).backward()
            optimizer.step()
        assert not recorder.notes
    memory = assert_exact(tmp_path / "run", model, 4)
    asked = memory.attend(model, (torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.tensor([2, 5])))
    for layer in memory.layers:
        contribution = asked[layer].contribution(1)
        found = contribution.initial() + torch.from_numpy(contribution.total()["total"].astype(np.float64))
        torch.testing.assert_close(found, contribution.output(), rtol=1e-9, atol=1e-9)
        assert len(found) == (2 if layer == "head" else 7)

"""`recorder.ids`: which rows of the dataset each batch is made of, and the batches as they would have come anyway."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import dualform
from dualform.errors import RecordingError
from dualform.recorder.drawn import OWN_ORDER, IdentifiedBatches, watched
from dualform.store import InMemory

ROWS = 23


class Rows(Dataset[Tensor]):
    """Row i holds i three times, so that every batch tells what is in it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Tensor:
        numbers = torch.as_tensor(index, dtype=torch.float32)
        return numbers[..., None].expand(*numbers.shape, 3)


class Eager(Sampler[int]):
    """Draws as soon as it is asked for an iterator, not when the first index is."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(ROWS).tolist())

    def __len__(self) -> int:
        return ROWS


class Refilled(Sampler[list[int]]):
    """Gives one and the same list, filled anew."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for rows in torch.randperm(ROWS).split(4):
            batch[:] = rows.tolist()
            yield batch

    def __len__(self) -> int:
        return 6


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(Rows(), **options)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: loader(batch_size=4),
    "shuffled": lambda: loader(batch_size=4, shuffle=True),
    "shuffled by a generator": lambda: loader(batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "without the last batch": lambda: loader(batch_size=4, shuffle=True, drop_last=True),
    "weighted": lambda: loader(batch_size=4, sampler=WeightedRandomSampler([*range(1, ROWS + 1)], 30)),
    "some rows": lambda: loader(batch_size=4, sampler=SubsetRandomSampler(range(5, 15))),
    "eager": lambda: loader(batch_size=4, sampler=Eager()),
    "batches in lists": lambda: loader(batch_sampler=[[3, 1], [22], [0, 0, 7]]),
    "batch sampler": lambda: loader(batch_sampler=BatchSampler(RandomSampler(range(ROWS)), 5, drop_last=True)),
    "one list, filled anew": lambda: loader(batch_sampler=Refilled()),
    "batches that the dataset makes": lambda: loader(
        batch_size=None, sampler=BatchSampler(RandomSampler(range(ROWS)), 5, drop_last=False)
    ),
    "rows without a batch": lambda: loader(batch_size=None, shuffle=True),
    "workers": lambda: loader(batch_size=4, shuffle=True, num_workers=2, prefetch_factor=3),
    "persistent workers": lambda: loader(batch_size=4, shuffle=True, num_workers=2, persistent_workers=True),
    "eager, with workers": lambda: loader(batch_size=4, sampler=Eager(), num_workers=1),
}


def said(batches: IdentifiedBatches, epochs: int = 2) -> list[tuple[Tensor, Tensor]]:
    return [(torch.as_tensor(ids), batch) for _ in range(epochs) for ids, batch in batches]


@pytest.mark.parametrize("name", LOADERS)
def test_ids_are_those_of_the_batch_and_nothing_else_is_drawn(name: str) -> None:
    torch.manual_seed(0)
    plain = LOADERS[name]()
    expected = [batch for _ in range(2) for batch in plain]
    state = torch.get_rng_state()

    torch.manual_seed(0)
    ours = LOADERS[name]()
    samplers = ours.sampler, ours.batch_sampler
    batches = IdentifiedBatches(ours)
    assert len(batches) == len(plain)
    pairs = said(batches)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(pairs) == len(expected)
    for (ids, batch), same in zip(pairs, expected, strict=True):
        assert torch.equal(batch, same)
        assert torch.equal(batch[..., 0], ids.to(batch.dtype))
    assert (ours.sampler, ours.batch_sampler) == samplers
    assert ours.sampler is samplers[0]
    assert ours.batch_sampler is samplers[1]


@pytest.mark.parametrize("name", LOADERS)
def test_a_watched_copy_draws_the_same(name: str) -> None:
    torch.manual_seed(0)
    plain = LOADERS[name]()
    expected = [batch for _ in range(2) for batch in plain]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    twin, drawn = watched(LOADERS[name]())
    number = 0
    for _ in range(2):
        for position, batch in enumerate(twin):
            drawn.advance(position)
            assert torch.equal(batch, expected[number])
            assert torch.equal(batch[..., 0], torch.as_tensor(drawn.ids).to(batch.dtype))
            number += 1
    assert number == len(expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_may_be_broken_off_and_loaders_be_used_before_and_between(persistent: bool) -> None:
    ours = loader(batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
    next(iter(ours))
    for ids, batch in IdentifiedBatches(ours):
        assert torch.equal(batch[:, 0], ids.to(batch.dtype))
        if len(set(ids.tolist()) & set(range(8))) > 1:
            break
    assert sorted(torch.cat([*ours])[:, 0].tolist()) == list(range(ROWS))
    pairs = said(IdentifiedBatches(ours), epochs=1)
    assert sorted(torch.cat([ids for ids, _ in pairs]).tolist()) == list(range(ROWS))
    for ids, batch in pairs:
        assert torch.equal(batch[:, 0], ids.to(batch.dtype))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.zeros(8, 3))


class Skipping(DataLoader[Tensor]):
    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__() if batch.sum() > 20)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (DataLoader(Stream(), batch_size=4), "iterable dataset does not say"),
        ([torch.zeros(3)], "got list"),
        (Skipping(Rows(), batch_size=4), "Skipping has an `__iter__` of its own"),
        (DataLoader(Rows(), batch_size=4, num_workers=2, in_order=False), "in_order=False"),
    ],
)
def test_loaders_that_cannot_tell_raise_before_they_are_used(bad: Any, problem: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    with (
        dualform.record(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run") as recorder,
        pytest.raises(RecordingError, match=problem) as raised,
    ):
        recorder.ids(bad)
    assert "recorder.tag(id=...)" in str(raised.value)


def test_keys_that_are_no_numbers() -> None:
    letters = {"a": torch.zeros(3), "b": torch.ones(3)}
    by_key: Any = DataLoader(letters, sampler=["b", "a", "b"], batch_size=2)  # type: ignore[arg-type]
    assert [ids for ids, _ in IdentifiedBatches(by_key)] == [["b", "a"], ["b"]]
    pairs: Any = DataLoader({(0, 1): torch.zeros(3)}, sampler=[(0, 1)], batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(RecordingError, match=r"gives \(0, 1\) for an example"):
        next(iter(IdentifiedBatches(pairs)))


def trained(where: InMemory, several: bool = False, **options: Any) -> tuple[Tensor, dualform.Memory, list[str]]:
    """Train on random rows with `recorder.ids`; return the data, the memory and the notes."""
    torch.manual_seed(1)
    data = torch.randn(ROWS, 3)
    batches: Any = DataLoader(data, batch_size=4, shuffle=True, **options)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (model[0], model[2])]
    with dualform.record(model, optimizers, where, dtype="float32") as recorder:
        for _ in range(3):
            for ids, batch in recorder.ids(batches):
                assert torch.equal(data[ids], batch)
                for optimizer in optimizers:  # each by a pass of its own: tags hold for the whole batch
                    model.zero_grad()
                    F.mse_loss(model(batch), batch).backward()
                    optimizer.step()
        notes = recorder.notes
    return data, dualform.load(where), notes


def test_slots_are_tagged_with_the_row_of_their_key() -> None:
    data, memory, notes = trained(InMemory())
    assert memory.verify().ok
    assert not notes
    query = torch.randn(1, 3)
    rows = memory.attend(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)), query)["0"].top(3 * ROWS)
    torch.testing.assert_close(torch.tensor(rows["score"]), data[torch.tensor(rows["id"]).long()] @ query[0])


def test_a_collate_function_of_ones_own_is_noted() -> None:
    _, _, notes = trained(InMemory(), collate_fn=torch.stack)
    assert notes == [OWN_ORDER]


def test_batches_of_two_loaders_at_once_are_not_tagged_by_themselves() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, other = loader(batch_size=4), loader(batch_size=4, shuffle=True)
    where = InMemory()
    with dualform.record(model, optimizer, where) as recorder:
        with pytest.raises(RecordingError, match="two loaders are iterated at once"):
            for _ in zip(recorder.ids(one), recorder.ids(other), strict=True):
                """Whose batch is it?"""
        for _ in recorder.ids(one):
            break  # which is over then
        both = [recorder.ids(one, tag=False), recorder.ids(other, tag=False)]
        for pairs in zip(*both, strict=True):
            for name, (ids, batch) in zip("ab", pairs, strict=True):
                recorder.tag(id=ids, of=name)
                model(batch).sum().backward()
            optimizer.step()
    seen = dualform.load(where).attend({"linear": torch.ones(1, 3)})["linear"].top(100)
    assert {*seen["of"]} == {"a", "b"}
    assert (seen["score"] == 3 * seen["id"]).all()

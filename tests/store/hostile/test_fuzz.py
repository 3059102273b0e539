"""Random hostile runs: signed edits of documents and tensors, and random bytes in the middle of files."""

import shutil
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.hostile.ask import blamed, everything
from tests.store.hostile.bounds import little_memory
from tests.store.hostile.edits import FILES, places, put
from tests.store.hostile.forge import LEFT_OUT, SIZES, Forged, ForgedShard, Raw
from tests.store.hostile.runs import RUNS

pytestmark = pytest.mark.slow

Draw = Callable[[st.SearchStrategy[Any]], Any]

_NUMBERS = st.one_of(
    st.integers(-2, 4), st.sampled_from([2**15, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]), st.integers()
)
_LEAVES = st.one_of(
    st.none(), st.booleans(), _NUMBERS, st.floats(), st.text(max_size=5), st.sampled_from(["0", "i", "s"])
)
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
_SIZES = st.one_of(st.integers(0, 5), st.sampled_from([2**31, 2**62, 2**63, 2**64 - 1]))


@cache
def sound(run: str) -> Forged:
    """A tiny run, taken apart."""
    with tempfile.TemporaryDirectory() as directory:
        RUNS[run](Path(directory) / "run")
        return Forged.of(Path(directory) / "run")


def check(path: Path) -> None:
    """Everything is answered, or refused by an error that names one of the run's files."""
    with little_memory():
        found = blamed(everything(path))
    for message in found:
        assert any(file in message for file in FILES), message
        assert message.isprintable(), repr(message)


def edit_document(forged: Forged, draw: Draw) -> None:
    """A node of the manifest, or of what a shard says of itself, becomes something else."""
    number = draw(st.integers(-1, len(forged.shards) - 1))
    document = forged.manifest if number < 0 else forged.shards[number].info
    found = [*places(document), ("x",), ("previous",), ("crc32",)]
    place = draw(st.sampled_from(found))
    value = draw(_JSON) if place in found[-3:] else draw(_JSON | st.just(LEFT_OUT))
    put(document, place, value)


def _some_tensor(forged: Forged, draw: Draw) -> tuple[ForgedShard, str]:
    found = [(number, name) for number, shard in enumerate(forged.shards) for name in sorted(shard.tensors)]
    number, name = draw(st.sampled_from(found))
    return forged.shards[number], name


def edit_tensor(forged: Forged, draw: Draw) -> None:
    """A tensor gets another dtype, another shape, other bytes: each of them or all."""
    shard, name = _some_tensor(forged, draw)
    raw = Raw.of(shard.tensors[name])
    dtype = draw(st.sampled_from([raw.dtype, *SIZES]))
    shape = draw(st.just(raw.shape) | st.lists(_SIZES, max_size=4))
    room = SIZES[dtype] * int(np.prod(shape, dtype=object))
    length = room if room < 4096 else len(raw.content)
    content = (raw.content * (length // max(len(raw.content), 1) + 1))[:length].ljust(length, b"\0")
    shard.tensors[name] = Raw(dtype, shape, draw(st.just(content) | st.binary(min_size=length, max_size=length)))


def edit_numbers(forged: Forged, draw: Draw) -> None:
    """Other bytes for a tensor, whose dtype and shape stay sound."""
    shard, name = _some_tensor(forged, draw)
    raw = Raw.of(shard.tensors[name])
    size = SIZES[raw.dtype]
    content = bytearray(raw.content)
    at = draw(st.integers(0, max(len(content) // size - 1, 0))) * size
    number = draw(
        _NUMBERS.map(lambda n: (n % 2 ** (8 * size)).to_bytes(size, "little")) | st.binary(min_size=size, max_size=size)
    )
    content[at : at + size] = number
    shard.tensors[name] = Raw(raw.dtype, raw.shape, bytes(content))


def edit_names(forged: Forged, draw: Draw) -> None:
    """A tensor by another name, a new one, or one less."""
    shard, name = _some_tensor(forged, draw)
    other = draw(st.sampled_from(sorted(shard.tensors)) | st.text(max_size=5).map(lambda text: f"state/buffers/{text}"))
    tensor = shard.tensors[name] if draw(st.booleans()) else shard.tensors.pop(name)
    if draw(st.booleans()):
        shard.tensors[other] = tensor


_EDITS = st.lists(st.sampled_from([edit_document, edit_tensor, edit_numbers, edit_names]), min_size=1, max_size=3)


@given(data=st.data())
def test_signed_edits(data: st.DataObject) -> None:
    forged = deepcopy(sound(data.draw(st.sampled_from(sorted(RUNS)))))
    for edit in data.draw(_EDITS):
        edit(forged, data.draw)
    with tempfile.TemporaryDirectory() as directory:
        forged.write(Path(directory))
        check(Path(directory))


@given(
    run=st.sampled_from(sorted(RUNS)),
    file=st.sampled_from(FILES),
    at=st.floats(0, 1),
    cut=st.integers(0, 40),
    splice=st.binary(max_size=40) | st.text(max_size=10).map(str.encode),
)
def test_bytes_in_the_middle_of_a_file(run: str, file: str, at: float, cut: int, splice: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        sound(run).write(path)
        content = (path / file).read_bytes()
        start = int(at * len(content))
        (path / file).write_bytes(content[:start] + splice + content[start + cut :])
        check(path)


def test_sound_runs_are_not_complained_about(tmp_path: Path) -> None:
    for run in RUNS:
        sound(run).write(tmp_path)
        assert not blamed(everything(tmp_path))
        shutil.rmtree(tmp_path)

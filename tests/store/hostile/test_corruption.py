"""Every byte of every file of a tiny run, damaged in turn: no other exception, no wrong answer.

Where the damaged file was refused at once, the answers come from files that nobody touched, and so they are asked
for only now and then; that nothing else was opened is checked every time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dualform.errors import DualformError
from dualform.store import Run
from tests.store.hostile.ask import Answers, answers_of, escaped, everything
from tests.store.hostile.runs import smallest
from tests.tally import TRIED

pytestmark = pytest.mark.slow

NOW_AND_THEN = 64
FILES = ["manifest.json", "shard-000000.safetensors", "shard-000001.safetensors", "shard-000002.safetensors"]


@dataclass
class Intact:
    """A run, its files' bytes, and its answers: whole, and before each of its shards."""

    path: Path
    answers: Answers
    prefixes: dict[str, Answers]  # file -> the answers of the run that ends before it
    digests: dict[str, list[str]]  # file -> the digests of the shards before it
    content: dict[str, bytes]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Intact]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("intact") / "r"
    smallest(path)
    content = {name: (path / name).read_bytes() for name in FILES}
    answers, digests = everything(path, thorough=False), [shard.digest for shard in Run(path).shards]
    prefixes: dict[str, Answers] = {}
    for name in FILES:
        (path / name).write_bytes(b"")
        prefixes[name] = everything(path, thorough=False)
        (path / name).write_bytes(content[name])
    before = {name: digests[: max(place - 1, 0)] for place, name in enumerate(FILES)}
    yield Intact(path, answers, prefixes, before, content)
    torch.set_num_threads(threads)


def corruptions(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Each byte in turn: one bit of it flipped, all of them, none left, and nothing from there on."""
    for at, byte in enumerate(content):
        for what, changed in (("a bit", byte ^ 1 << at % 8), ("all bits", byte ^ 255), ("zero", 0)):
            if changed != byte:
                yield f"{what} at {at}", content[:at] + bytes([changed]) + content[at + 1 :]
        yield f"cut off at {at}", content[:at]


@pytest.mark.parametrize("file", FILES)
def test_no_damage_escapes(intact: Intact, file: str) -> None:
    found = []
    for number, (what, content) in enumerate(corruptions(intact.content[file])):
        (intact.path / file).write_bytes(content)
        wrong = _wrong(intact, file, number % NOW_AND_THEN == 0)
        if wrong:
            found.append(f"{file}, {what}: {wrong}")
        else:
            TRIED["corruptions: right answers, or a refusal that names the file"] += 1
    (intact.path / file).write_bytes(intact.content[file])
    assert not found[:20]


def _wrong(intact: Intact, file: str, ask_anyway: bool) -> str | None:
    try:
        run = Run(intact.path)
    except DualformError as error:
        return None if file in str(error) else f"the refusal does not name {file}: {error}"
    if run.unread and [shard.digest for shard in run.shards] != intact.digests[file]:
        return "other shards were read than those before it"
    if run.unread and file in run.unread and not ask_anyway:
        return None
    return escaped(answers_of(run, thorough=False), intact.answers, intact.prefixes[file], file)


def test_the_run_is_as_before_afterwards(intact: Intact) -> None:
    assert everything(intact.path, thorough=False) == intact.answers

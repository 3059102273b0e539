"""Hostile files: each is answered or refused by an error that names it, in little memory and in no time."""

import os
import shutil
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualform
from dualform.companions import own_file
from dualform.errors import QueryError
from dualform.inputs import read_inputs
from tests.store.hostile.ask import Refused, blamed, escaped, everything
from tests.store.hostile.bounds import in_no_time, little_memory
from tests.store.hostile.cases import NO_FILES_OF_ITS_OWN, SIGNED
from tests.store.hostile.documents import info_cases, manifest_cases
from tests.store.hostile.edits import FILES, SECOND, Case, Edit
from tests.store.hostile.files import FILES_AS_THEY_ARE, FileCase
from tests.store.hostile.forge import Forged
from tests.store.hostile.masks import AS_GOOD, take_a_bit_each, with_its_zeros
from tests.store.hostile.runs import RECIPES, RUNS, widest
from tests.store.hostile.tensors import number_cases, tensor_cases
from tests.tally import TRIED

pytestmark = pytest.mark.slow

THOROUGH = os.environ.get("DUALFORM_TESTS") == "thorough"
_RUNS = "forged runs: answers, or a refusal that names the file"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Forged]]:
    """Every tiny run, taken apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("sound")
    for name, record in RUNS.items():
        record(directory / name)
    yield {name: Forged.of(directory / name) for name in RUNS}
    torch.set_num_threads(threads)


def wrong_with(case: Case, sound: dict[str, Forged], path: Path) -> str | None:
    """Ask a run that was edited; what is wrong with its answers, if anything is."""
    forged = deepcopy(sound[case.run])
    case.edit(forged)
    shutil.rmtree(path, ignore_errors=True)
    forged.write(path)
    try:
        with little_memory():
            found = blamed(everything(path))
            if case.run in RECIPES:
                found += blamed(everything(path, thorough=False, recipe=RECIPES[case.run]))
    except Exception as error:
        return f"{case.run}, {case.name}: {type(error).__name__}: {error}"
    # what does not fit together may be said of either file, but of one of them
    files = [case.file] if case.refused else FILES
    strangers = [message for message in found if not any(file in message for file in files)]
    if strangers:
        return f"{case.run}, {case.name}: {case.file} is not named: {strangers[0]}"
    if case.refused and not any(case.says in message for message in found):
        return f"{case.run}, {case.name}: nobody says {case.says!r}: {found}"
    return None


@pytest.mark.parametrize("case", SIGNED, ids=lambda case: f"{case.run}: {case.name}")
def test_a_signed_file(case: Case, sound: dict[str, Forged], tmp_path: Path) -> None:
    assert not wrong_in([case], 1, sound, tmp_path / "run")


def wrong_in(family: Iterable[Case], stride: int, sound: dict[str, Forged], path: Path) -> list[str]:
    """What is wrong in a family of cases: in every so many of them, or in all if tests are to be thorough."""
    cases = list(family)
    if cases and cases[0].run in RECIPES:  # where each question trains
        stride *= 4
    chosen = list(islice(cases, 0, None, 1 if THOROUGH else stride))
    found = [wrong for case in chosen if (wrong := wrong_with(case, sound, path))]
    TRIED[_RUNS] += len(chosen) - len(found)
    return found


@pytest.mark.parametrize("run", RUNS)
def test_every_key_of_a_manifest(run: str, sound: dict[str, Forged], tmp_path: Path) -> None:
    assert not wrong_in(manifest_cases(run, sound[run].manifest), 4, sound, tmp_path / "run")


@pytest.mark.parametrize("run", RUNS)
def test_every_key_of_the_info(run: str, sound: dict[str, Forged], tmp_path: Path) -> None:
    assert not wrong_in(info_cases(run, sound[run].shards[1].info), 4, sound, tmp_path / "run")


@pytest.mark.parametrize("run", RUNS)
def test_every_tensor(run: str, sound: dict[str, Forged], tmp_path: Path) -> None:
    assert not wrong_in(tensor_cases(run, sound[run].shards[1].tensors), 4, sound, tmp_path / "run")


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("run", RUNS)
def test_every_number(run: str, shard: int, sound: dict[str, Forged], tmp_path: Path) -> None:
    family = number_cases(run, shard, sound[run].shards[shard].tensors)
    assert not wrong_in(family, 23, sound, tmp_path / "run")


def answers_but_for_sizes(forged: Forged, path: Path) -> dict[str, str | Refused]:
    forged.write(path)
    with little_memory():
        return {name: one for name, one in everything(path).items() if name not in ("info", "lines")}


@pytest.mark.parametrize("edit", AS_GOOD.values(), ids=AS_GOOD)
def test_values_without_their_zeros_are_read_as_those_with_them(
    edit: Edit, sound: dict[str, Forged], tmp_path: Path
) -> None:
    forged = deepcopy(sound["relu"])
    edit(forged)
    found = answers_but_for_sizes(forged, tmp_path / "run")
    for shard in forged.shards:
        with_its_zeros(shard)
    assert found == answers_but_for_sizes(forged, tmp_path / "run")
    assert not blamed(found)
    TRIED[_RUNS] += 1


def test_zeros_take_no_more_memory_than_a_block(tmp_path: Path) -> None:
    widest(tmp_path / "run")
    forged = Forged.of(tmp_path / "run")
    take_a_bit_each(forged, 1_000)  # half a gigabyte with their zeros
    forged.write(tmp_path / "run")
    memory = dualform.load(tmp_path / "run")
    with little_memory(256 << 20):
        unmoved = memory.weights("0")["0.weight"]
        torch.testing.assert_close(memory.where(i=0).weights("0")["0.weight"], unmoved, rtol=0, atol=0)
    torch.testing.assert_close(unmoved, memory.until(0).weights("0")["0.weight"], rtol=0, atol=0)


@pytest.mark.parametrize("case", FILES_AS_THEY_ARE, ids=lambda case: case.name)
def test_a_file_as_it_is(case: FileCase, sound: dict[str, Forged], tmp_path: Path) -> None:
    path = tmp_path / "run"
    sound["linear"].write(path)
    right = everything(path)
    content = (path / case.file).read_bytes()
    (path / case.file).write_bytes(b"")
    before = everything(path)
    (path / case.file).unlink()
    case.put(path / case.file, content)
    with little_memory(), in_no_time():
        answers = everything(path)
    assert escaped(answers, right, before, case.file) is None
    assert bool(blamed(answers)) == case.refused
    TRIED[_RUNS] += 1


def test_shards_of_another_run(sound: dict[str, Forged], tmp_path: Path) -> None:
    for name in ("linear", "adam"):
        sound[name].write(tmp_path / name)
    stranger = tmp_path / "adam" / SECOND
    (tmp_path / "linear" / SECOND).write_bytes(stranger.read_bytes())
    found = blamed(everything(tmp_path / "linear"))
    assert len(found) == 1
    assert SECOND in found[0]


@pytest.mark.parametrize("named", NO_FILES_OF_ITS_OWN)
def test_a_run_names_files_that_are_not_its_own(named: Any, sound: dict[str, Forged], tmp_path: Path) -> None:
    forged = deepcopy(sound["linear"])
    forged.manifest["about"] = {"inputs": named, "text": named}
    path = tmp_path / "run"
    forged.write(path)
    (tmp_path / "outside.npy").write_bytes(b"")
    (path / "link.npy").symlink_to(tmp_path / "outside.npy")
    (path / "endless.npy").symlink_to("/dev/zero")
    (path / "directory.npy").mkdir()
    os.mkfifo(path / "pipe.npy")
    memory = dualform.load(path)
    for what in ("inputs", "text"):
        with pytest.raises(QueryError, match="of its own"):
            own_file(memory, what, "pass one")


def test_a_run_names_files_of_its_own(sound: dict[str, Forged], tmp_path: Path) -> None:
    forged = deepcopy(sound["linear"])
    forged.manifest["about"] = {"inputs": "x.npy", "text": "link.npy"}
    forged.write(tmp_path / "run")
    np.save(tmp_path / "run" / "x.npy", np.zeros((1, 2)))
    (tmp_path / "run" / "link.npy").symlink_to("x.npy")
    memory = dualform.load(tmp_path / "run")
    for what in ("inputs", "text"):
        assert read_inputs(own_file(memory, what, "pass one")).inputs.shape == (1, 2)

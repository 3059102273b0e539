"""What every backend promises, of local files and of memory."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualform.store
from dualform.atomic_file import Bytes
from dualform.errors import RunExists, StorageError
from dualform.store import Backend, InMemory, LocalFiles, open_backend
from dualform.store.backend import Lock

BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "local files": lambda directory: LocalFiles(directory / "run"),
    "memory": lambda directory: InMemory(),
}
# As long as nothing, as a byte, as what is aligned, and longer than the buffer that local files are written through.
SIZES = (0, 1, 4096, 4097, (4 << 20) + 5)

FORKED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {project!r})
from tests.store.test_backends import BACKENDS
backend = BACKENDS[{kind!r}](Path({directory!r}))
backend.create()
lock = backend.lock()
child = os.fork()
if not child:
    held = lock.held
    lock.release()
    os._exit(held)
sys.exit(os.waitpid(child, 0)[1] or not lock.held)
"""


STORE = Path(dualform.store.__file__).parent
ABOVE = sorted({*STORE.rglob("*.py")} - {*(STORE / "backend").glob("*.py")})
OF_FILES = {"fcntl", "io", "mmap", "os", "shutil", "stat", "tempfile"}  # modules


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str, tmp_path: Path) -> Backend:
    made = BACKENDS[kind](tmp_path)
    made.create()
    return made


@pytest.fixture
def lock(backend: Backend) -> Iterator[Lock]:
    taken = backend.lock()
    yield taken
    taken.release()


def content_of(text: str) -> Bytes:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def text_of(backend: Backend, name: str) -> str:
    blob = backend.open(name)
    return blob.read(0, blob.size).tobytes().decode()


def test_a_new_place_is_empty(backend: Backend) -> None:
    assert backend.exists()
    assert backend.names() == set()


def test_creating_a_place_again_keeps_what_is_there(backend: Backend, lock: Lock) -> None:
    lock.write("a", [content_of("kept")])
    backend.create()
    assert text_of(backend, "a") == "kept"


@pytest.mark.parametrize("size", SIZES)
def test_what_was_written_is_read(backend: Backend, lock: Lock, size: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    lock.write("a", np.array_split(content, 3))
    blob = backend.open("a")
    assert blob.size == size
    np.testing.assert_array_equal(blob.read(0, size), content)
    np.testing.assert_array_equal(blob.read(size // 3, size // 2), content[size // 3 : size // 2])


def test_names_are_those_of_the_objects(backend: Backend, lock: Lock) -> None:
    for name in ("a", "b"):
        lock.write(name, [content_of(name)])
    assert backend.names() == {"a", "b"}


def test_a_write_replaces_what_was_there(backend: Backend, lock: Lock) -> None:
    lock.write("a", [content_of("a long text")])
    lock.write("a", [content_of("short")])
    assert text_of(backend, "a") == "short"


def failing() -> Iterator[Bytes]:
    yield content_of("half")
    raise MemoryError("no room for the other half")


def test_a_write_that_fails_leaves_what_was_there(backend: Backend, lock: Lock) -> None:
    lock.write("a", [content_of("whole")])
    with pytest.raises(MemoryError):
        lock.write("a", failing())
    assert text_of(backend, "a") == "whole"
    assert backend.names() == {"a"}


def test_a_write_that_fails_leaves_nothing_where_nothing_was(backend: Backend, lock: Lock) -> None:
    with pytest.raises(MemoryError):
        lock.write("a", failing())
    assert backend.names() == set()


def test_what_was_deleted_is_gone(backend: Backend, lock: Lock) -> None:
    for name in ("a", "b"):
        lock.write(name, [content_of(name)])
    lock.delete("a")
    assert backend.names() == {"b"}
    with pytest.raises(FileNotFoundError):
        backend.open("a")


def test_what_is_not_there_is_not_found(backend: Backend, lock: Lock) -> None:
    for operation in (backend.open, lock.delete):
        with pytest.raises(FileNotFoundError):
            operation("a")


@pytest.mark.parametrize("change", [lambda lock: lock.write("a", [content_of("after")]), lambda lock: lock.delete("a")])
def test_what_was_opened_stays_as_it_was(backend: Backend, lock: Lock, change: Callable[[Lock], Any]) -> None:
    lock.write("a", [content_of("before")])
    blob = backend.open("a")
    change(lock)
    assert blob.read(0, blob.size).tobytes() == b"before"


def test_bytes_that_were_read_are_the_readers_own(backend: Backend, lock: Lock) -> None:
    lock.write("a", [content_of("before")])
    blob = backend.open("a")
    blob.read(0, blob.size)[:] = 0
    assert text_of(backend, "a") == "before"


def test_bytes_that_were_written_are_the_backends_own(backend: Backend, lock: Lock) -> None:
    content = content_of("before").copy()
    lock.write("a", [content])
    content[:] = 0
    assert text_of(backend, "a") == "before"


def test_a_second_writer_is_refused_until_the_first_lets_go(backend: Backend) -> None:
    first = backend.lock()
    with pytest.raises(RunExists, match=f"is recording to {backend.describe()}"):
        backend.lock()
    assert (first.held, first.removed) == (True, False)
    first.release()
    assert not first.held
    second = backend.lock()
    first.release()  # once more does no harm: it is the second one's now
    with pytest.raises(RunExists):
        backend.lock()
    second.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_does_not_hold_the_lock(kind: str, tmp_path: Path) -> None:
    script = FORKED.format(project=str(Path(__file__).parents[2]), kind=kind, directory=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_path_is_a_directory_of_files_and_a_backend_is_itself(tmp_path: Path, backend: Backend) -> None:
    assert open_backend(tmp_path) == open_backend(str(tmp_path)) == LocalFiles(tmp_path)
    assert open_backend(backend) is backend
    with pytest.raises(TypeError):
        open_backend(7)  # type: ignore[arg-type]


def test_messages_name_objects() -> None:
    here = Path.cwd() / "runs" / "x"
    described = [(one.describe(), one.describe("a")) for one in (LocalFiles(Path("runs/x")), InMemory(), InMemory("m"))]
    assert described == [(str(here), str(here / "a")), ("memory", "memory:a"), ("m", "m:a")]


def test_a_directory_that_is_not_there_has_no_objects(tmp_path: Path) -> None:
    backend = LocalFiles(tmp_path / "nowhere")
    assert not backend.exists()
    assert backend.names() == set()
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/nowhere/writer.lock: No such file"):
        backend.lock()


def test_a_directory_with_the_name_of_an_object_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    lock = LocalFiles(tmp_path).lock()
    with pytest.raises(OSError, match="a"):
        lock.delete("a")
    lock.release()
    assert (tmp_path / "a" / "b").exists()


def test_a_directory_that_is_renamed_is_written_to_by_its_new_name(tmp_path: Path) -> None:
    backend, elsewhere = LocalFiles(tmp_path / "run"), LocalFiles(tmp_path / "elsewhere")
    backend.create()
    lock = backend.lock()
    assert not lock.moved
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    backend.create()  # somebody else's, by the same name
    assert (lock.moved, lock.removed) == (True, False)
    lock.write("a", [content_of("mine")])
    lock.write("b", [content_of("gone")])
    lock.delete("b")
    assert (text_of(elsewhere, "a"), elsewhere.names(), lock.names(), backend.names()) == ("mine", {"a"}, {"a"}, set())
    lock.release()


def test_files_that_are_mapped_are_not_kept_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("this system does not list open files")
    before = len(list(descriptors.iterdir()))
    blobs = [LocalFiles(tmp_path).open("a") for _ in range(50)]
    assert len(list(descriptors.iterdir())) == before
    assert {blob.read(0, blob.size).tobytes() for blob in blobs} == {b"content"}


@pytest.mark.parametrize("path", ABOVE, ids=lambda path: path.relative_to(STORE).as_posix())
def test_nothing_above_a_backend_knows_of_files(path: Path) -> None:
    known = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            known |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            known.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Name) and node.id == "open":
            known.add("io")
    assert not known & OF_FILES

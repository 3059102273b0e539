"""One writer a run; what a killed process leaves behind is never in the way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dualform.errors import RunExists, StorageError
from dualform.store.backend.file_lock import FileLock

HOLDER = """
import os, sys, time
sys.path.insert(0, {project!r})
from pathlib import Path
from dualform.store.backend.file_lock import FileLock
lock = FileLock(Path({directory!r}))
if not os.fork():  # as a data loader's worker is
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_second_writer_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    first = FileLock(tmp_path)
    with pytest.raises(RunExists, match=f"another process is recording to {tmp_path}"):
        FileLock(tmp_path)
    first.release()
    first.release()  # once more does no harm
    FileLock(tmp_path).release()


def test_a_lock_file_that_is_merely_there_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "writer.lock").write_text("4711")
    lock = FileLock(tmp_path)
    assert lock.held
    lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_killed_process_gives_its_lock_back_though_its_child_lives_on(tmp_path: Path) -> None:
    script = HOLDER.format(project=str(Path(__file__).parents[2]), directory=str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(RunExists):
            FileLock(tmp_path)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it is still there
        FileLock(tmp_path).release()
    finally:
        holder.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_whether_the_directory_was_removed(tmp_path: Path) -> None:
    lock = FileLock(tmp_path)
    before = lock.removed
    (tmp_path / "writer.lock").unlink()
    assert (before, lock.removed) == (False, True)
    lock.release()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write .*writer.lock: No such file"):
        FileLock(tmp_path / "nowhere")

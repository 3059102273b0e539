"""Downloads from a server on this machine: the first good mirror wins, and no half file stays."""

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dualform.datasets.download import fetch
from dualform.errors import DataError
from tests.datasets import mirrors

CONTENT = np.random.default_rng(0).bytes(200_000)  # several chunks, and as long gzipped
GZIPPED = gzip.compress(CONTENT)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def mirror() -> Iterator[mirrors.Mirror]:
    with mirrors.running() as server:
        server.files = {
            "plain": CONTENT,
            "good.gz": GZIPPED,
            "other.gz": gzip.compress(b"other"),
            "page.gz": b"<html>Please log in</html>",
            "unpacked.gz": CONTENT,
            "half.gz": GZIPPED[: len(GZIPPED) // 2],
            "longer.gz": GZIPPED + b"and more",
        }
        server.cut = {"cut.gz": GZIPPED[:150_000], "short.gz": GZIPPED}
        server.slow = {"slow.gz"}
        server.dropped = {"dropped.gz"}
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "x.gz"


FAILURES = {
    "missing.gz": "404 Not Found",
    "other.gz": "another file",
    "page.gz": "Not a gzipped file",
    "unpacked.gz": "Not a gzipped file",
    "half.gz": "ended before the end-of-stream marker",
    "longer.gz": "Not a gzipped file",
    "cut.gz": "ended after 150,000 of 150,100 bytes",
    "short.gz": "ended after",
    "slow.gz": "timed out",
    "dropped.gz": "closed connection without response",
}


@pytest.mark.parametrize(("name", "content"), [("good.gz", GZIPPED), ("plain", CONTENT)])
def test_a_good_file_arrives_as_it_was_sent(mirror: mirrors.Mirror, tmp_path: Path, name: str, content: bytes) -> None:
    target = tmp_path / "a new" / "directory" / name
    fetch([mirror.url(name)], target, SHA256)
    assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(("name", "why"), FAILURES.items(), ids=FAILURES.keys())
def test_a_mirror_that_fails_is_passed_over(mirror: mirrors.Mirror, target: Path, name: str, why: str) -> None:
    with pytest.raises(DataError, match="cannot download x.gz from any mirror") as caught:
        fetch([mirror.url(name)], target, SHA256, timeout=0.3)
    assert f"{mirror.url(name)}: " in str(caught.value)
    assert why in str(caught.value)
    assert list(target.parent.iterdir()) == []
    fetch([mirror.url(name), mirror.url("good.gz")], target, SHA256, timeout=0.3)
    assert target.read_bytes() == GZIPPED
    assert list(target.parent.iterdir()) == [target]


def test_no_mirror_is_asked_after_a_good_one(mirror: mirrors.Mirror, target: Path) -> None:
    fetch([mirrors.closed(), mirror.url("good.gz"), mirror.url("other.gz")], target, SHA256)
    assert mirror.asked == ["good.gz"]


def test_all_mirrors_are_named_when_all_fail(mirror: mirrors.Mirror, target: Path) -> None:
    nobody = mirrors.closed()
    with pytest.raises(DataError) as caught:
        fetch([nobody, mirror.url("missing.gz")], target, SHA256)
    assert f"{nobody}: Connection refused" in str(caught.value)
    assert "missing.gz: 404" in str(caught.value)


def test_a_failure_leaves_an_old_file_alone(mirror: mirrors.Mirror, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(DataError):
        fetch([mirror.url("cut.gz")], target, SHA256)
    assert target.read_bytes() == b"old"


def test_progress_counts_up_to_the_total(mirror: mirrors.Mirror, target: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    fetch([mirror.url("good.gz")], target, SHA256, lambda *report: seen.append(report))
    counts = [done for _, done, _ in seen]
    assert len(counts) > 1
    assert counts == sorted(counts)
    assert seen[-1] == ("x.gz", len(GZIPPED), len(GZIPPED))


def test_an_interrupted_download_leaves_nothing_behind(mirror: mirrors.Mirror, target: Path) -> None:
    def interrupt(file: str, done: int, total: int | None) -> None:
        assert len(list(target.parent.iterdir())) == 1  # the file under its temporary name
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch([mirror.url("good.gz"), mirror.url("good.gz")], target, SHA256, interrupt)
    assert list(target.parent.iterdir()) == []
    assert mirror.asked == ["good.gz"]


def test_a_directory_that_cannot_be_made(mirror: mirrors.Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot make"):
        fetch([mirror.url("good.gz")], tmp_path / "file" / "x.gz", SHA256)
    assert mirror.asked == []

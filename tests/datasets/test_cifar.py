"""CIFAR-10 from tiny files: found, downloaded, not to be had, malformed."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dualform.datasets import cifar
from dualform.errors import DataError
from tests.datasets import mirrors
from tests.datasets.cifar_files import records, tiny, write


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "MIRRORS", (mirrors.closed() + cifar.ARCHIVE,))


def archive(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A gzipped archive of files in the folder, and of other members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{cifar.FOLDER}/{name}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
        for member in others:
            packed.addfile(member)
    return content.getvalue()


def member(name: str, kind: bytes = tarfile.SYMTYPE, target: str = "/etc/passwd") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def serve(mirror: mirrors.Mirror, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    mirror.files = {cifar.ARCHIVE: content}
    monkeypatch.setattr(cifar, "MIRRORS", (mirrors.closed() + cifar.ARCHIVE, mirror.url(cifar.ARCHIVE)))
    monkeypatch.setattr(cifar, "MD5", hashlib.md5(content).hexdigest())


@pytest.mark.parametrize("gzipped", [False, True])
def test_files_are_found_and_read(tmp_path: Path, gzipped: bool) -> None:
    files = tiny()
    write(tmp_path, {f"{name}.gz": gzip.compress(content) for name, content in files.items()} if gzipped else files)
    data = cifar.load(tmp_path)
    assert (data.name, data.image_shape, data.class_names[9], data.note) == ("cifar-10", (3, 32, 32), "truck", None)
    whole = np.frombuffer(b"".join(files[name] for name in cifar.TRAIN), np.uint8).reshape(-1, 3073)
    torch.testing.assert_close(data.train.raw, torch.from_numpy(whole[:, 1:].copy()))
    torch.testing.assert_close(data.train.labels, torch.from_numpy(whole[:, 0].astype(np.int64)))
    assert data.test.raw.shape == (2, 3072)


def test_any_of_the_training_files_are_taken_in_order_and_named(tmp_path: Path) -> None:
    files = tiny(("data_batch_4.bin", "data_batch_2.bin"))
    write(tmp_path, files)
    data = cifar.load(tmp_path)
    assert data.note == "2 of its 5 files of training images: data_batch_2.bin, data_batch_4.bin"
    first = np.frombuffer(files["data_batch_2.bin"], np.uint8).reshape(-1, 3073)[0, 1:]
    torch.testing.assert_close(data.train.raw[0], torch.from_numpy(first.copy()))
    assert len(data.train.labels) == 6


def test_the_first_folder_with_images_to_train_and_to_test_on_is_taken(tmp_path: Path, home: Path) -> None:
    write(tmp_path, {cifar.TEST: records(2)})
    write(home, tiny(("data_batch_5.bin",)))
    assert cifar.load(tmp_path).note == "1 of its 5 files of training images: data_batch_5.bin"


MALFORMED = {
    "empty": ("data_batch_1.bin", b"", "it holds 0 bytes; expected 1 to 10,000 records of 3,073 bytes"),
    "short": ("test_batch.bin", records(2)[:-1], "it holds 6,145 bytes"),
    "long": ("data_batch_3.bin", bytes(3073 * 10_001), "it holds more than 30,730,000 bytes"),
    "no such class": ("data_batch_2.bin", records(2) + b"\x0a" + bytes(3072), "the label 10 in record 2"),
    "other classes": (cifar.CLASSES, b"apple\nbaby\nbed", "names the classes apple, baby, bed"),
    "no text": (cifar.CLASSES, b"\xff\xfe\x00", "those of CIFAR-10 are airplane"),
}


@pytest.mark.parametrize(("name", "content", "what"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_files_are_named(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    folder = write(tmp_path, tiny() | {name: content})
    with pytest.raises(DataError) as caught:
        cifar.load(tmp_path)
    assert str(folder / name) in str(caught.value)
    assert what in str(caught.value)


def test_a_gzipped_file_is_not_decompressed_without_end(tmp_path: Path) -> None:
    files = tiny()
    del files["test_batch.bin"]
    write(tmp_path, files | {"test_batch.bin.gz": gzip.compress(bytes(3073 * 20_000))})
    with pytest.raises(DataError, match="more than 30,730,000 bytes"):
        cifar.load(tmp_path)
    write(tmp_path, {"test_batch.bin.gz": gzip.compress(records(2))[:-20]})
    with pytest.raises(DataError, match="cannot be decompressed"):
        cifar.load(tmp_path)


def test_offline_says_what_to_put_where(tmp_path: Path) -> None:
    write(tmp_path, {"data_batch_1.bin": records(2)})
    with pytest.raises(DataError) as caught:
        cifar.load(tmp_path)
    message = str(caught.value)
    assert "cifar-10 was not found, and could not be downloaded" in message
    assert f"into {tmp_path / cifar.FOLDER}: data_batch_2.bin" in message
    assert "--dataset digits" in message


def test_the_archive_is_downloaded_once_and_unpacked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tarfile.TarInfo("../escaped.bin")
    with mirrors.running() as mirror:
        serve(mirror, monkeypatch, archive(tiny() | {"readme.html": b"<html>"}, outside))
        data = cifar.load()
        again = cifar.load()
        assert mirror.asked == [cifar.ARCHIVE]
    assert data.note is None
    torch.testing.assert_close(again.train.raw, data.train.raw)
    assert {path.name for path in (home / cifar.FOLDER).iterdir()} == {*cifar.TRAIN, cifar.TEST, cifar.CLASSES}
    assert [path.name for path in home.iterdir()] == [cifar.FOLDER]


WRONG = {
    "a file is missing": (archive(tiny(cifar.TRAIN[:4])), "data_batch_5.bin"),
    "a link": (
        archive(tiny(cifar.TRAIN[:4]), member(f"{cifar.FOLDER}/data_batch_5.bin")),
        "AbsoluteLink|absolute path|cannot unpack",
    ),
    "a device": (
        archive(tiny(cifar.TRAIN[:4]), member(f"{cifar.FOLDER}/data_batch_5.bin", tarfile.CHRTYPE, "")),
        "cannot unpack",
    ),
    "too long": (archive(tiny() | {"data_batch_1.bin": bytes(30_730_001)}), "no file of at most 30,730,000 bytes"),
    "no archive": (b"<html>Please log in</html>", "cannot unpack"),
    "half an archive": (archive(tiny())[:20_000], "cannot unpack"),
}


@pytest.mark.parametrize(("content", "why"), WRONG.values(), ids=WRONG.keys())
def test_an_archive_of_something_else_is_not_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    with mirrors.running() as mirror:
        serve(mirror, monkeypatch, content)
        with pytest.raises(DataError, match=why):
            cifar.load()
    assert not (home / cifar.FOLDER / cifar.TEST).exists()
    assert not any(path.is_symlink() for path in home.rglob("*"))


def test_an_archive_with_another_digest_is_not_unpacked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrors.running() as mirror:
        serve(mirror, monkeypatch, archive(tiny()))
        monkeypatch.setattr(cifar, "MD5", "0" * 32)
        with pytest.raises(DataError, match="it is another file: its digest is"):
            cifar.load()
    assert list((home / cifar.FOLDER).iterdir()) == []

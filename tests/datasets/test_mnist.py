"""MNIST and its like from tiny files: found, downloaded, not to be had, malformed."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dualform.datasets import mnist
from dualform.errors import DataError, UnknownName
from tests.datasets import mirrors
from tests.datasets.idx_files import Array, encoded, tiny, write


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "fashion-mnist"):
        use_mirrors(monkeypatch, name, mirrors.closed())


def use_mirrors(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> None:
    """Mirrors that have the tiny files, or should."""
    digests = {file: hashlib.sha256(encoded(array)).hexdigest() for file, array in tiny().items()}
    monkeypatch.setitem(mnist.SOURCES, name, replace(mnist.SOURCES[name], mirrors=addresses, digests=digests))


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_files_are_found_and_read(tmp_path: Path, name: str, folder: str, gzipped: bool) -> None:
    arrays = tiny(train=5, test=3)
    write(tmp_path / folder, arrays, gzipped=gzipped)
    data = mnist.load(name, tmp_path)
    assert (data.name, data.image_shape, len(data.class_names)) == (name, (28, 28), 10)
    for split, part, count in ((data.train, "train", 5), (data.test, "t10k", 3)):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        torch.testing.assert_close(split.raw, torch.from_numpy(images.reshape(count, 784)))
        torch.testing.assert_close(split.labels, torch.from_numpy(labels.astype(np.int64)))


def test_one_set_is_not_taken_for_the_other(tmp_path: Path) -> None:
    write(tmp_path / "mnist", tiny())
    write(tmp_path, tiny())
    with pytest.raises(DataError, match="fashion-mnist was not found"):
        mnist.load("fashion-mnist", tmp_path)


def test_class_names() -> None:
    assert mnist.SOURCES["mnist"].class_names == tuple("0123456789")
    assert mnist.SOURCES["fashion-mnist"].class_names[0] == "T-shirt/top"
    assert mnist.SOURCES["fashion-mnist"].class_names[9] == "Ankle boot"


def test_offline_says_what_to_put_where(home: Path) -> None:
    with pytest.raises(DataError) as caught:
        mnist.load("mnist")
    message = str(caught.value)
    assert "mnist was not found, and could not be downloaded" in message
    assert "Connection refused" in message
    assert f"into {home / 'mnist'}: {', '.join(tiny())}. Or" in message
    assert "--dataset digits" in message


def test_offline_names_the_directory_given_and_only_what_it_lacks(tmp_path: Path) -> None:
    arrays = tiny()
    del arrays["t10k-labels-idx1-ubyte"]
    write(tmp_path / "mnist", arrays)
    with pytest.raises(DataError) as caught:
        mnist.load("mnist", tmp_path)
    assert f"into {tmp_path / 'mnist'}: t10k-labels-idx1-ubyte. Or" in str(caught.value)


def test_offline_names_the_directory_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALFORM_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"into {tmp_path / 'mnist'}: train-images"):
        mnist.load("mnist")


def test_what_is_missing_is_downloaded_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []
    with mirrors.running() as mirror:
        mirror.files = {f"{name}.gz": gzip.compress(encoded(array)) for name, array in tiny().items()}
        use_mirrors(monkeypatch, "mnist", mirrors.closed(), mirror.address)
        data = mnist.load("mnist", progress=lambda *report: reports.append(report))
        assert mirror.asked == list(mirror.files)
        assert [file for file, *_ in reports] == mirror.asked
        (home / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
        mnist.load("mnist")
        assert mirror.asked[4:] == ["t10k-labels-idx1-ubyte.gz"]
    again = mnist.load("mnist")
    torch.testing.assert_close(again.train.raw, data.train.raw)


def test_whole_files_stay_when_a_later_one_fails(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = tiny()
    with mirrors.running() as mirror:
        mirror.files = {f"{first}.gz": gzip.compress(encoded(tiny()[first]))}
        use_mirrors(monkeypatch, "mnist", mirror.address)
        with pytest.raises(DataError, match=f"into {home / 'mnist'}: {', '.join(others)}. Or"):
            mnist.load("mnist")
    assert [path.name for path in (home / "mnist").iterdir()] == [f"{first}.gz"]


MALFORMED: dict[str, tuple[str, Array, str]] = {
    "small images": (
        "train-images-idx3-ubyte",
        np.zeros((5, 8, 8), np.uint8),
        "expected images of shape (count, 28, 28)",
    ),
    "labels as images": ("t10k-images-idx3-ubyte", np.zeros(3, np.uint8), "expected images of shape (count, 28, 28)"),
    "too few labels": ("train-labels-idx1-ubyte", np.zeros(4, np.uint8), "expected one for each of 5 images"),
    "images as labels": (
        "t10k-labels-idx1-ubyte",
        np.zeros((3, 28, 28), np.uint8),
        "expected one for each of 3 images",
    ),
    "no such class": ("train-labels-idx1-ubyte", np.full(5, 10, np.uint8), "the label 10; expected labels from 0 to 9"),
}


@pytest.mark.parametrize(("name", "array", "what"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_data_is_named(tmp_path: Path, name: str, array: Array, what: str) -> None:
    write(tmp_path / "mnist", tiny() | {name: array})
    with pytest.raises(DataError) as caught:
        mnist.load("mnist", tmp_path)
    assert str(tmp_path / "mnist" / name) in str(caught.value)
    assert what in str(caught.value)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist", tiny())
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"corrupt IDX file {path}"):
        mnist.load("mnist", tmp_path)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(UnknownName, match="no data set 'emnist'; choose from 'mnist', 'fashion-mnist'"):
        mnist.load("emnist")

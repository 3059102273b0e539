"""Data sets by name."""

from pathlib import Path

import pytest

from dualform.datasets import image_catalogue
from dualform.errors import UnknownName
from tests.datasets import cifar_files
from tests.datasets.idx_files import tiny, write


def test_every_name_loads_its_own_set(tmp_path: Path) -> None:
    write(tmp_path / "mnist", tiny())
    write(tmp_path / "fashion-mnist", tiny())
    cifar_files.write(tmp_path)
    assert image_catalogue.NAMES == ("mnist", "fashion-mnist", "digits", "turned-digits", "cifar-10")
    for name in image_catalogue.NAMES:
        assert image_catalogue.load(name, tmp_path).name == name


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownName, match="no data set 'cifar'; choose from 'mnist', 'fashion-mnist', 'digits'"):
        image_catalogue.load("cifar")

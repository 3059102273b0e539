"""Every test of this room is far from the network, from the user's cache and from installed data sets."""

from pathlib import Path

import pytest

from dualform.datasets import places


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this test."""
    monkeypatch.delenv("DUALFORM_DATA", raising=False)
    monkeypatch.setenv("DUALFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(places, "INSTALLED", tmp_path / "installed")
    return tmp_path / "home"

"""What a run says of its model and its files costs no more than what the run holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

import dualform
from dualform.experiments.language.network import FACTORY, LanguageModel
from dualform.viewer.opened_run import open_run
from tests.cli.conftest import fails

_TRUE = {"vocabulary": 5, "embedding": 3, "hidden": 4}


class Largest(TorchDispatchMode):
    """The most bytes that any tensor had, but for those that need no memory."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "meta":
            self.nbytes = max(self.nbytes, result.nbytes)
        return result


def record(path: Path, **about: Any) -> Path:
    """Record two steps of a small language model, which says of itself what it likes."""
    torch.manual_seed(0)
    model = LanguageModel(**_TRUE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, path, about={"model": FACTORY, **about}):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.arange(4)[None])[0].square().sum().backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("forged", [{"hidden": 2000}, {"embedding": 10**6}, {"vocabulary": 10**6}, {"hidden": 10**9}])
def test_arguments_of_a_model_take_no_memory_that_the_run_is_not_worth(tmp_path: Path, forged: dict[str, int]) -> None:
    run = record(tmp_path / "run", arguments={**_TRUE, **forged}, inputs="inputs.safetensors")
    save_file({"inputs": torch.zeros(1, 2, dtype=torch.int64)}, run / "inputs.safetensors")
    with Largest() as largest:  # type: ignore[no-untyped-call]
        reason = fails("attend", run)
        shown = open_run(run)
    assert "shape" in reason or "Storage size" in reason
    assert shown.network is None
    assert shown.missing["model"] in reason
    assert largest.nbytes < 1e6


def test_the_true_arguments_make_the_model(tmp_path: Path) -> None:
    run = record(tmp_path / "run", arguments=_TRUE)
    shown = open_run(run)
    assert shown.network is not None
    assert "model" not in shown.missing


def test_inputs_without_a_number_are_refused(tmp_path: Path) -> None:
    """Rows of nothing: as many as one likes, in a file of a few bytes."""
    run = record(tmp_path / "run", arguments=_TRUE, inputs="inputs.safetensors")
    save_file({"inputs": torch.empty(10**12, 0)}, run / "inputs.safetensors")
    assert "holds 1,000,000,000,000 inputs without a number" in fails("attend", run)
    assert "without a number" in open_run(run).missing["inputs"]


@pytest.mark.parametrize("what", ["inputs", "text"])
def test_a_file_of_holes_is_not_read(tmp_path: Path, what: str) -> None:
    run = record(tmp_path / "run", arguments=_TRUE, **{what: "holes.npy"})
    with (run / "holes.npy").open("wb") as file:
        file.truncate(1 << 40)
    if (run / "holes.npy").stat().st_blocks:
        pytest.skip("this file system has no holes")
    prompt = ["--prompt", "a"] if what == "text" else []
    assert "mostly holes" in fails("attend", run, *prompt)
    assert "mostly holes" in open_run(run).missing[what]

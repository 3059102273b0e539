"""What is recorded of a model, what is kept of it, and where."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import dualform
from dualform.errors import RecordingError, RunExists, UnknownName
from dualform.store import Run
from tests.recorder.loops import Unknown, assert_exact, batch, network, record, sgd, step


def test_what_cannot_be_recorded_is_skipped_with_a_reason(tmp_path: Path) -> None:
    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.tied = nn.Linear(4, 4)
            self.twin = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
            self.twin.bias = self.tied.bias
            self.attention = nn.MultiheadAttention(4, 2)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
            self.left_out = nn.Linear(4, 4)
            self.empty = nn.Linear(0, 4)

    with pytest.warns(UserWarning, match="zero-element tensors"):  # torch's own
        model = Everything()
    kept = [p for n, p in model.named_parameters() if not n.startswith("left_out")]
    recorder = dualform.record(model, torch.optim.SGD(kept, lr=0.1), tmp_path / "run")
    assert recorder.layers == ["plain"]
    assert {name: reason.split()[-1] for name, reason in recorder.skipped.items()} == {
        "tied": "recorded",
        "twin": "trained",
        "attention": "dualform.unfuse(model)",
        "attention.out_proj": "dualform.unfuse(model)",
        "normed": "trained",
        "left_out": "optimiser",
        "empty": "width",
    }
    with (
        pytest.warns(UserWarning, match="does not record tied: its bias is also used by 'twin', which is not recorded"),
        recorder,
    ):
        pass
    with pytest.raises(RecordingError, match="'frozen' cannot be recorded: its weight is frozen"):
        dualform.record(model, torch.optim.SGD(kept, lr=0.1), tmp_path / "other", layers=["plain", "frozen"])


def test_layers_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    assert dualform.record(model, sgd(model), tmp_path / "a", layers="2").layers == ["2"]
    assert dualform.record(model, sgd(model), tmp_path / "b", layers=["*"]).layers == ["0", "2"]
    with pytest.raises(UnknownName, match="no layer 'head'; choose from '0', '2'"):
        dualform.record(model, sgd(model), tmp_path / "c", layers="head")


def test_layers_are_excluded_by_name_or_pattern(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3).requires_grad_(False))
    optimizer = sgd(model)
    recorder = dualform.record(model, optimizer, tmp_path / "a", exclude="2")
    assert (recorder.layers, recorder.skipped) == (["0", "1"], {})  # nothing has to be left out but what is asked for
    assert dualform.record(model, optimizer, tmp_path / "b", exclude=["[1-9]"]).layers == ["0"]
    assert dualform.record(model, optimizer, tmp_path / "c", layers=["0", "1"], exclude="0").layers == ["1"]
    with pytest.raises(UnknownName, match="no layer 'head'; choose from '0', '1', '2'"):
        dualform.record(model, optimizer, tmp_path / "d", exclude=["0", "head"])
    with pytest.raises(RecordingError, match="none is asked for that is not excluded"):
        dualform.record(model, optimizer, tmp_path / "e", exclude="*")


def test_a_model_of_which_nothing_is_known_says_so(tmp_path: Path) -> None:
    model = Unknown(3)
    with pytest.raises(
        RecordingError, match="no layer of this model can be recorded: none of its modules is of a known"
    ):
        dualform.record(model, sgd(model), tmp_path / "run")


def test_part_of_a_model_is_recorded_and_the_rest_keeps_its_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    optimizer = sgd(model)
    inputs, _ = batch()
    with record(model, optimizer, tmp_path / "run", layers="2") as recorder:
        for _ in range(3):
            step(model, optimizer)
        recorder.sync()
        model.eval()
        middle = model(inputs).detach()
        model.train()
        for _ in range(3):
            step(model, optimizer)
    memory = assert_exact(tmp_path / "run", model, 6)
    assert memory.unrecorded == ["0.bias", "0.weight", "1.bias", "1.weight"]
    fresh = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    assert_close(memory.until(3).model(fresh)(inputs).detach(), middle)
    assert_close(memory.model(fresh)(inputs), model.eval()(inputs))


def test_estimate_is_what_the_run_takes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(50, 60), nn.ReLU(), nn.Linear(60, 40))
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", dtype="float16") as recorder:
        estimate = recorder.estimate(steps=50, batch=100)
        for _ in range(50):
            optimizer.zero_grad()
            model(torch.randn(100, 50)).square().mean().backward()
            optimizer.step()
    size = sum(file.stat().st_size for file in (tmp_path / "run").iterdir())
    assert estimate.nbytes == pytest.approx(size, rel=0.1)
    assert str(estimate).endswith("GB")


def test_repeated_keys_are_stored_once(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    inputs, targets = batch(50)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for i in range(12):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            if i % 5 == 4:
                recorder.sync()
    memory = assert_exact(tmp_path / "run", model, 12)
    assert memory.slots("0") == 600
    stored = sum(len(shard["slots/0/keys"]) for _, shard in Run(memory.path).chapters)
    assert stored == 50


def test_a_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
    with pytest.raises(RunExists, match="already holds a run"), record(model, optimizer, tmp_path / "run"):
        pass
    with record(model, optimizer, tmp_path / "run", overwrite=True):
        step(model, optimizer)
        step(model, optimizer)
    assert dualform.load(tmp_path / "run").steps == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunExists, match="not a dualform run"):
        record(model, optimizer, tmp_path / "mine", overwrite=True).__enter__()
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_by_an_exception_leaves_a_run_that_opens(tmp_path: Path, error: type[BaseException]) -> None:
    model = network()
    optimizer = sgd(model)

    def interrupted() -> None:
        with record(model, optimizer, tmp_path / "run"):
            step(model, optimizer)
            step(model, optimizer)
            raise error

    with pytest.raises(error):
        interrupted()
    assert not model[0]._forward_hooks
    memory = assert_exact(tmp_path / "run", model, 2)
    assert f"ended by {error.__name__}" in repr(memory)


@pytest.mark.parametrize(
    ("kind", "values", "stored"), [("SGD", True, "float16"), ("Adam", True, "float32"), ("Adam", False, "float16")]
)
def test_precision_suits_the_optimiser(tmp_path: Path, kind: str, values: bool, stored: str) -> None:
    """One that divides elementwise magnifies what half precision loses of values."""
    model = network()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path / "run", values=values):
        step(model, optimizer)
    assert dualform.load(tmp_path / "run").summary()["storage"]["dtype"] == stored

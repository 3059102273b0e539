"""What no layer records is accounted for, so that a model at a step is the whole model."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import dualform
from tests.optimizers import make, options
from tests.recorder.loops import record, sgd


class Normed(nn.Module):
    """Norms, running statistics, a bare parameter, and one that has a gradient only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch_norm = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)
        self.norm, self.last = nn.LayerNorm(6), nn.Linear(6, 3)
        self.shift, self.seldom = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor, seldom: bool = False) -> Tensor:
        hidden = self.norm(torch.relu(self.batch_norm(self.first(inputs))) + self.shift)
        outputs: Tensor = self.last(hidden)
        return outputs * self.seldom if seldom else outputs


@given(optimizer=options(), seed=st.integers(0, 1000), clipped=st.booleans())
def test_a_model_at_any_step_is_the_whole_model(
    optimizer: tuple[str, dict[str, Any]], seed: int, clipped: bool
) -> None:
    torch.manual_seed(seed)
    model = Normed().double()
    stepped, states = make(optimizer[0], model.parameters(), 0.05, optimizer[1]), []
    with TemporaryDirectory() as directory:
        with record(model, stepped, Path(directory) / "run") as recorder:
            for i in range(9):
                states.append(copy.deepcopy(model.state_dict()))
                stepped.zero_grad()
                model(torch.randn(7, 5, dtype=torch.float64), seldom=i % 3 == 1).square().mean().backward()
                if clipped:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                stepped.step()
                if i == 4:
                    recorder.sync()
        memory = dualform.load(Path(directory) / "run")
        assert memory.coverage.snapshots_only == 0
        for s, state in enumerate([*states, model.state_dict()]):
            view = memory.until(s)
            assert view.note is None
            assert_close(view.model(model).state_dict(), state, rtol=1e-9, atol=1e-9)


def test_replayed_parameters_are_certified(tmp_path: Path) -> None:
    """One that is changed by hand between two steps shows in the certificate, by name."""
    model = Normed().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for path, shift in (("exact", 0.0), ("moved", 1e-3)):
        with record(model, optimizer, tmp_path / path):
            for _ in range(4):
                with torch.no_grad():
                    next(model.norm.parameters()).add_(shift)
                optimizer.zero_grad()
                model(torch.randn(7, 5, dtype=torch.float64)).square().mean().backward()
                optimizer.step()
    assert dualform.load(tmp_path / "exact").verify().ok
    certificate = dualform.load(tmp_path / "moved").verify()
    assert certificate.status == "not exact"
    assert certificate.accounted is not None
    failed = certificate.accounted.failed(certificate.tolerance)[0]
    assert [name for name, distance in failed.parameters.items() if not distance.ok(1e-9)] == ["norm.weight"]


def test_what_is_too_large_is_named_where_it_is_not_as_it_was(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 200), nn.Linear(200, 200), nn.BatchNorm1d(200), nn.Linear(200, 3)).double()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", layers=["0", "3"]):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 5, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
    memory = dualform.load(tmp_path / "run")
    assert memory.coverage.parameters("snapshots only") == ["1.weight"]
    assert memory.note is None
    view = memory.until(2)
    assert view.note is not None
    assert view.note.endswith("is as it was at step 0: '1.weight'")
    with pytest.warns(UserWarning, match="as it was at step 0: '1.weight'"):
        view.model(model)
    assert view.note in repr(view)


def test_a_hundredth_of_the_slots_may_be_more_than_64_kb(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 20_000), nn.LayerNorm(20_000), nn.Linear(20_000, 2))
    optimizer = sgd(model)
    with pytest.warns(UserWarning, match="1: LayerNorm is of no known kind"):
        recorder = dualform.record(model, optimizer, tmp_path / "run", layers=["0", "2"]).start()
    model(torch.randint(10, (400,))).square().mean().backward()
    optimizer.step()
    recorder.stop()
    assert recorder.coverage.parameters("accounted for") == ["1.weight", "1.bias"]
    assert dualform.load(tmp_path / "run").coverage.snapshots_only == 0


def test_a_run_that_goes_on_accounts_for_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Normed().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(recorder: dualform.Recorder, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(7, 5, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        recorder.sync()

    with record(model, optimizer, tmp_path / "run") as recorder:
        train(recorder, 3)
    with record(model, optimizer, tmp_path / "run", resume=3) as recorder:
        train(recorder, 2)
        middle = copy.deepcopy(model.state_dict())
        train(recorder, 2)
    memory = dualform.load(tmp_path / "run")
    assert memory.verify().ok
    assert memory.coverage.accounted > 0.2
    assert_close(memory.until(5).model(model).state_dict(), middle, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"foreach": True, "nesterov": True}, {"fused": True}])
def test_gradients_that_torch_changes_while_it_steps_are_those_it_began_with(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    recorded, other = sgd(nn.ModuleList([model[0], model[2]])), sgd(model[1], **options)
    with dualform.record(model, [recorded, other], tmp_path / "run", dtype="float32"):
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(7, 5)).square().mean().backward()
            recorded.step()
            other.step()
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.accounted is not None
    assert certificate.accounted.relative_error < 1e-5


def test_gradients_that_a_closure_makes_are_accounted_for(tmp_path: Path) -> None:
    model = Normed().double()
    optimizer = sgd(model)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(7, 5, dtype=torch.float64)).square().mean()
        loss.backward()
        return float(loss.detach())

    with record(model, optimizer, tmp_path / "run"):
        for _ in range(4):
            optimizer.step(closure)
    assert dualform.load(tmp_path / "run").verify().ok

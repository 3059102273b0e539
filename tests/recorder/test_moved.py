"""Weights that move by another way than recorded steps are never certified, and what comes after is only a note."""

import copy
import resource
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import dualform
from dualform.errors import ParameterChanged
from tests.recorder.loops import batch, network, record, sgd, step


def backward(model: nn.Module) -> None:
    inputs, targets = batch()
    F.cross_entropy(model(inputs), targets).backward()


def backward_often(model: nn.Module, passes: int, *stepped: torch.optim.Optimizer) -> None:
    for _ in range(passes):
        model.zero_grad()
        backward(model)
        for optimizer in stepped:
            optimizer.step()


def test_an_optimiser_that_is_never_stepped_proves_nothing(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    passed, own = sgd(model), sgd(model)
    with record(model, passed, tmp_path / "run") as recorder:
        for _ in range(5):
            own.zero_grad()
            backward(model)
            own.step()
    assert recorder.steps == 0
    assert "5 backward passes and no step of the optimiser that was passed" in recorder.notes[0]
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.status == "not exact"
    assert {*certificate.moved} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert "no step was recorded" in certificate.headline
    assert "a trainer may make its own" in str(certificate)


def test_backward_passes_that_wait_in_vain_are_dropped_with_one_warning(tmp_path: Path) -> None:
    model = network()
    recorder = record(model, sgd(model), tmp_path / "run").start()
    with pytest.warns(UserWarning, match="were not followed by a step of their optimiser") as warned:
        backward_often(model, 2100)
    recorder.stop()
    assert len(warned) == 1
    assert "2,1" in recorder.notes[-1]


def test_the_other_optimiser_goes_on_while_one_is_idle(tmp_path: Path) -> None:
    model = network()
    stepped, idle = sgd(model[0]), sgd(model[1])
    recorder = record(model, [stepped, idle], tmp_path / "run").start()
    with pytest.warns(UserWarning, match="through '1' were not followed"):
        backward_often(model, 1030, stepped)
    idle.step()
    recorder.stop()
    assert dualform.load(tmp_path / "run").verify().ok


def test_a_step_after_hundreds_of_backward_passes_is_recorded(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(300):
            backward(model)
        optimizer.step()
    assert dualform.load(tmp_path / "run").verify().ok


def test_a_part_that_another_optimiser_trains_is_not_certified(tmp_path: Path) -> None:
    model = network(nn.LayerNorm(4))
    passed, own = sgd(nn.ModuleList([model[0], model[2]])), sgd(model[1])
    with pytest.warns(UserWarning, match="1: its weight is not in the optimiser"):
        recorder = record(model, passed, tmp_path / "run").start()
    backward_often(model, 3, passed, own)
    recorder.stop()
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.status == "not exact"
    assert {*certificate.moved} == {"1.weight", "1.bias"}
    assert "not by a recorded step" in certificate.headline


def test_a_large_part_that_moves_while_its_optimiser_is_idle_is_not_certified(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 200), nn.Linear(200, 200), nn.Linear(200, 3)).double()
    stepped, idle = sgd(model[0]), sgd(nn.ModuleList([model[1], model[2]]))
    for path, by_hand in (("untouched", 0.0), ("moved", 1e-3)):
        with record(model, [stepped, idle], tmp_path / path, exclude="1"):
            for _ in range(2):
                model.zero_grad()
                backward(model)
                stepped.step()
                next(model[1].parameters()).data += by_hand
    assert dualform.load(tmp_path / "untouched").verify().ok
    assert {*dualform.load(tmp_path / "moved").verify().moved} == {"1.weight"}


def test_a_part_that_was_frozen_and_is_trained_later_is_not_certified(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
        model[0].requires_grad_(True)
        step(model, optimizer)
    certificate = dualform.load(tmp_path / "run").verify()
    assert not certificate.ok
    assert {*certificate.moved} == {"0.weight", "0.bias"}


class Packing(nn.Linear):
    """A frozen layer that packs its weight when it is first called, as some that quantise do."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.weight.shape == (self.out_features, self.in_features):
            self.weight.data = self.weight.data.T.reshape(-1, 1)
        return F.linear(inputs, self.weight.view(self.in_features, self.out_features).T, self.bias)


def test_a_frozen_weight_that_gets_another_shape_is_not_certified(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    packing = Packing(5, 4).to(torch.float64).requires_grad_(False)
    model[0] = packing
    optimizer = sgd(model[2])
    with record(model, optimizer, tmp_path / "run") as recorder:  # without a warning, for frozen is what it is
        step(model, optimizer)
    assert recorder.skipped == {}
    certificate = dualform.load(tmp_path / "run").verify()
    assert not certificate.ok
    assert certificate.moved == {"0.weight": 1.0}


def test_best_weights_that_are_loaded_at_the_end_are_no_part_of_the_run(tmp_path: Path) -> None:
    model = network(nn.BatchNorm1d(4))
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        best = copy.deepcopy(model.state_dict())
        for _ in range(4):
            step(model, optimizer)
        last = copy.deepcopy(model.state_dict())
        model.load_state_dict(best)
    memory = dualform.load(tmp_path / "run")
    certificate = memory.verify()
    assert certificate.ok
    assert certificate.steps_certified == 4
    assert "other weights were loaded after step 4" in recorder.notes[0]
    assert memory.notes == recorder.notes
    assert recorder.notes[0] in str(certificate)
    assert_close(memory.model(model).state_dict(), last)


def test_weights_that_are_loaded_and_put_back_do_not_matter(tmp_path: Path) -> None:
    """As an average of weights is, to be evaluated in the midst of a training."""
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(3):
            step(model, optimizer)
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict({name: tensor * 0 for name, tensor in kept.items()})
            model.load_state_dict(kept)
            recorder.sync()
    assert dualform.load(tmp_path / "run").verify().ok


def test_weights_that_are_swapped_at_the_end_are_a_note(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for i in range(4):
            step(model, optimizer)
            if i == 2:
                recorder.sync()
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.ok
    assert (certificate.steps_certified, certificate.steps) == (3, 4)
    assert "weights were changed after step 4" in str(certificate)


def test_a_checkpoint_of_swapped_weights_is_refused(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        step(model, optimizer)
        kept = [parameter.detach().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        with pytest.raises(ParameterChanged, match="call recorder.sync\\(\\) before that"):
            recorder.sync()
        for parameter, data in zip(model.parameters(), kept, strict=True):
            parameter.data.copy_(data)
        recorder.sync()
    assert dualform.load(tmp_path / "run").verify().ok


def freeze_bias(model: nn.Sequential) -> nn.Parameter:
    bias = model.get_parameter("0.bias")
    bias.requires_grad_(False)
    return bias


def test_a_frozen_bias_of_a_recorded_layer_that_is_trained_later_is_not_certified(tmp_path: Path) -> None:
    """By the recorded optimiser, by another one, by a group that is added: no step of it is recorded."""
    for way in ("unfrozen", "another", "added"):
        model = network(nn.ReLU())
        bias = freeze_bias(model)
        trained = [p for p in model.parameters() if way == "unfrozen" or p is not bias]
        optimizer, other = torch.optim.SGD(trained, lr=0.1), torch.optim.SGD([bias], lr=0.1)
        with record(model, optimizer, tmp_path / way):
            step(model, optimizer)
            bias.requires_grad_(True)
            if way == "added":
                optimizer.add_param_group({"params": [bias]})
            for _ in range(2):
                step(model, optimizer)
                if way == "another":
                    other.step()
        certificate = dualform.load(tmp_path / way).verify()
        assert certificate.status == "not exact", way
        assert {*certificate.moved} == {"0.bias"}, way


def test_what_a_parametrisation_trains_later_is_not_certified(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    nn.utils.parametrizations.weight_norm(model[0])
    own = model[0].parametrizations.weight.original0  # type: ignore[union-attr]
    own.requires_grad_(False)
    optimizer = sgd(model)
    with pytest.warns(UserWarning, match="parametrised"):
        recorder = record(model, optimizer, tmp_path / "run").start()
    step(model, optimizer)
    own.requires_grad_(True)
    step(model, optimizer)
    recorder.stop()
    certificate = dualform.load(tmp_path / "run").verify()
    assert {*certificate.moved} == {"0.parametrizations.weight.original0"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory is in use")
def test_memory_is_flat_while_a_recorded_optimiser_does_not_step(tmp_path: Path) -> None:
    """What waits is let go of again and again; a process that keeps it all would need 1.5 GB."""
    model = nn.Linear(500, 500)
    recorder = dualform.record(model, sgd(model), tmp_path / "run").start()
    inputs, sizes = torch.randn(256, 500), []

    def wait() -> None:
        for number in range(3000):
            model(inputs).sum().backward()
            if number % 500 == 499:
                sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20)

    with pytest.warns(UserWarning, match="were not followed by a step"):
        wait()
    recorder.stop()
    assert max(sizes) - sizes[1] < 256, sizes


@pytest.mark.parametrize("lr", [1e-3, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wrong_weights_in_half_precision_are_never_certified(tmp_path: Path, dtype: torch.dtype, lr: float) -> None:
    model = network(nn.ReLU()).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(20):
            inputs, targets = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
            optimizer.step()
        model.get_parameter("0.bias").data += 0.02  # of which the row that is looked at next tells nothing
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.status == "not certifiable"
    assert "NOT CERTIFIABLE" in certificate.headline
    assert certificate.relative_error > 0.01  # and not 0.0e+00, as if rounding explained it

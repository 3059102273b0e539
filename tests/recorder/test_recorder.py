"""What a training loop may do and still be recorded exactly."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import RecordingError
from dualform.store import Run
from tests.recorder.loops import assert_exact, batch, network, record, sgd, step


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Dropout(0.5)])
def test_common_networks(tmp_path: Path, activation: nn.Module) -> None:
    """Among them a bias before a BatchNorm, whose gradient is nothing but rounding."""
    model = network(activation)
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(20):
            step(model, optimizer)
    assert_exact(tmp_path / "run", model, 20)


def test_batchnorm_in_float16_is_no_false_alarm(tmp_path: Path) -> None:
    model = network(nn.BatchNorm1d(4)).float()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run", dtype="float16"):
        for _ in range(50):
            inputs, targets = batch(16)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.float()), targets).backward()
            optimizer.step()
    certificate = dualform.load(tmp_path / "run").verify()
    assert certificate.ok, str(certificate)
    parameters = certificate.to_dict()["layers"]["0"]["parameters"]
    assert parameters["0.bias"]["note"] == "no net gradient"


def test_leading_dimensions_become_slots_and_tags_spread(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        inputs = torch.randn(2, 3, 5, dtype=torch.float64)
        recorder.tag(sentence=["one", "two"], position=torch.arange(6).reshape(2, 3), column=torch.arange(3)[None])
        model(inputs).square().sum().backward()
        optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 1)
    table = memory.attend(model, inputs)["0"].top(6).where(query=0)
    by_slot = sorted(zip(*(table[n].tolist() for n in ("slot", "sentence", "position", "column")), strict=True))
    assert by_slot == [(i, ["one", "two"][i // 3], i, i % 3) for i in range(6)]
    assert len(memory.attend(model, inputs, rows=-1)["0"].queries) == 2


def test_a_tag_that_could_go_either_way_must_say_so(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with (
        pytest.raises(RecordingError, match=r"could go with several dimensions of \(4, 4\)"),
        record(model, optimizer, tmp_path / "run") as recorder,
    ):
        recorder.tag(label=torch.arange(4))
        model(torch.randn(4, 4, 5, dtype=torch.float64)).sum().backward()
        optimizer.step()


def test_a_layer_called_twice_in_a_pass(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4)).double()
    optimizer = sgd(model, lr=0.01)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(5):
            optimizer.zero_grad()
            recorder.tag(part="first")
            hidden = model(torch.randn(3, 4, dtype=torch.float64)).tanh()
            recorder.tag(part="second")
            model(hidden).square().sum().backward()
            optimizer.step()
    memory = assert_exact(tmp_path / "run", model, 5)
    table = memory.attend({"0": torch.ones(1, 4)})["0"].top(100)
    assert [part for _, part in sorted(zip(table["slot"].tolist(), table["part"].tolist(), strict=True))][:6] == [
        *["first"] * 3,
        *["second"] * 3,
    ]


def test_evaluation_in_between_is_not_recorded(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(4):
            inputs, targets = batch()
            recorder.tag(label=targets)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.randn(100, 5, dtype=torch.float64))
            model(torch.randn(7, 5, dtype=torch.float64))  # with gradients, but never followed back
            saliency = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
            torch.autograd.grad(model(saliency).sum(), saliency)  # followed back, but not into the weights
    assert assert_exact(tmp_path / "run", model, 4).slots("0") == 24


def test_an_empty_batch(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run") as recorder:
        for size in (0, 3, 0):
            recorder.tag(label=torch.zeros(size, dtype=torch.int64), task="a")
            optimizer.zero_grad()
            model(torch.randn(size, 5, dtype=torch.float64)).sum().backward()
            optimizer.step()
            recorder.sync()
    assert assert_exact(tmp_path / "run", model, 3).slots("2") == 3


def test_two_optimisers_that_take_turns(tmp_path: Path) -> None:
    generator, critic = nn.Linear(2, 3).double(), nn.Linear(3, 1).double()
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    first, second = sgd(generator, lr=0.01), sgd(critic, lr=0.01, momentum=0.0)
    with record(model, [first, second], tmp_path / "run"):
        for _ in range(6):
            noise = torch.randn(4, 2, dtype=torch.float64)
            second.zero_grad()
            (
                critic(generator(noise).detach()).mean() - critic(torch.randn(4, 3, dtype=torch.float64)).mean()
            ).backward()
            second.step()
            first.zero_grad()
            critic(generator(noise)).mean().backward()  # goes through the critic too, which is zeroed later
            first.step()
    assert_exact(tmp_path / "run", model, 12)


def test_memory_of_slots_that_wait_for_their_optimiser_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualform.recorder.session.chapter_bytes", lambda state: 1)  # every step seals
    model = network(nn.ReLU())
    body, head = sgd(model[0]), sgd(model[2])
    with record(model, [body, head], tmp_path / "run") as recorder:
        session = recorder._session
        assert session is not None
        for _ in range(5):
            inputs, targets = batch()
            body.zero_grad()
            head.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            body.step()
            recorder.sync()
            assert not session._arena._free  # the head's slots still lie in the body's chapter's memory
            head.step()
        step(model[:1], body)
        recorder.sync()
        assert session._arena._free
    assert_exact(tmp_path / "run", model, 11)


def test_a_chapter_is_sealed_when_it_is_old_and_worth_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for module in ("store.writer", "recorder.evidence"):
        monkeypatch.setattr(f"dualform.{module}.monotonic", lambda: clock[0])
    model = network(nn.ReLU())  # parameters and momenta: 39 * 2 * 8 bytes; a step of 6 slots: 6 * 16 * 8
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(20):
            clock[0] += 20
            step(model, optimizer)
    ends = [shard.info.last_step for shard in Run(tmp_path / "run").shards]
    assert ends == [0, 4, 11, 18, 20]  # the first after a minute, later ones when 8 snapshots' worth has come
    assert_exact(tmp_path / "run", model, 20)


def test_a_closure_and_an_unscaled_gradient(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            inputs, targets = batch()

            def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                (loss * 1024).backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= 1024
                return loss

            optimizer.step(closure)
    assert_exact(tmp_path / "run", model, 3)


def test_gradients_that_change_at_the_last_moment(tmp_path: Path) -> None:
    """By a hook that comes after the recorder's own."""
    model = network(nn.ReLU())
    optimizer = sgd(model)

    def halve(*_: object) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

    with record(model, optimizer, tmp_path / "run"):
        optimizer.register_step_pre_hook(halve)
        for _ in range(3):
            step(model, optimizer)
    assert_exact(tmp_path / "run", model, 3)
    factors = Run(tmp_path / "run").shards[-1]["slots/0/factors"]
    assert_close(torch.tensor(factors), torch.full((3, 2), 0.5, dtype=torch.float64))


def test_a_fused_optimiser_that_unscales_in_its_step(tmp_path: Path) -> None:
    """As torch.amp's scaler has it do: the gradients change, and their versions do not."""
    model = network(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            inputs, targets = batch()
            optimizer.zero_grad()
            (F.cross_entropy(model(inputs), targets) * 8).backward()
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)  # type: ignore[attr-defined]
            optimizer.step()
    assert_exact(tmp_path / "run", model, 3)


def test_a_skipped_step_with_infinite_gradients_leaves_no_trace(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        step(model, optimizer)
        (model(batch()[0]) * float("inf")).sum().backward()  # a loss scaler would skip this step
        optimizer.zero_grad()
        step(model, optimizer)
    assert assert_exact(tmp_path / "run", model, 2).slots("0") == 12


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations(tmp_path: Path, reentrant: bool) -> None:
    model = network(nn.Tanh())
    optimizer = sgd(model)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            inputs, targets = batch()
            optimizer.zero_grad()
            hidden = checkpoint(model[:2], inputs.requires_grad_(), use_reentrant=reentrant)
            F.cross_entropy(model[2](hidden), targets).backward()
            optimizer.step()
    assert assert_exact(tmp_path / "run", model, 3).slots("0") == 18


def test_a_batch_buffer_that_is_filled_anew(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    optimizer = sgd(model)
    buffer = torch.empty(6, 5, dtype=torch.float64)
    with record(model, optimizer, tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                inputs, targets = batch()
                buffer.copy_(inputs)
                F.cross_entropy(model(buffer), targets).backward()
            optimizer.step()
    assert_exact(tmp_path / "run", model, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler looks at it
def test_a_compiled_model(tmp_path: Path) -> None:
    model = network(nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    optimizer = sgd(compiled)
    with record(compiled, optimizer, tmp_path / "run") as recorder:
        for _ in range(3):
            step(compiled, optimizer)
        assert recorder.layers == ["0", "2"]
    assert_exact(tmp_path / "run", model, 3)
    parameters = dualform.load(tmp_path / "run").parameters(compiled)
    assert {name: id(parameter) for name, parameter in parameters.items()} == {
        name: id(parameter) for name, parameter in model.named_parameters()
    }


def test_recording_changes_neither_the_model_nor_its_random_numbers(tmp_path: Path) -> None:
    def run(recorded: bool) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(5)
        model = network(nn.Dropout(0.3))
        optimizer = sgd(model)
        if recorded:
            with record(model, optimizer, tmp_path / "run"):
                for _ in range(4):
                    step(model, optimizer)
        else:
            for _ in range(4):
                step(model, optimizer)
        hooks = [*model[0]._forward_hooks, *optimizer._optimizer_step_post_hooks, *optimizer._optimizer_step_pre_hooks]
        assert not hooks
        return dict(model.state_dict()), torch.rand(3)

    plain, recorded = run(False), run(True)
    assert_close(plain[0], recorded[0], rtol=0, atol=0)
    assert_close(plain[1], recorded[1], rtol=0, atol=0)

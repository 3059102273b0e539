"""dualform's LSTM, GRU and RNN against torch's, with every option and layout."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.testing import assert_close

import dualform
from dualform.nn import unfuse
from tests.nn.cases import Spy
from tests.nn.recurrent import KINDS, Case, cases

each_kind = pytest.mark.parametrize("kind", KINDS)
OF_EACH_SORT = [
    Case(kind, {**options, "num_layers": 2}, layout, lengths, True, d_in=2, hidden=3)
    for kind, options in [("LSTM", {}), ("LSTM", {"proj_size": 2}), ("GRU", {}), ("RNN", {})]
    for layout, lengths in [("batched", (3, 3)), ("unsorted", (2, 3, 1))]
] + [Case("RNN", {"nonlinearity": "relu", "bidirectional": True}, "packed", (3, 1), True)]


def named(case: Case) -> str:
    return "-".join([case.kind, case.layout, *map(str, case.options)])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")  # torch's own
@each_kind
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 5e-11), (torch.float32, 1e-6)])
def test_everything_equals_torch(kind: str, dtype: torch.dtype, close: float) -> None:
    @given(cases(kind), st.booleans())
    def check(case: Case, training: bool) -> None:
        fused, visible = case.modules(dtype)
        arguments = case.arguments(dtype)
        expected, gradients = case.everything(fused.train(training), arguments)
        found, own = case.everything(visible.train(training), arguments)
        assert_close(found, expected, rtol=close, atol=close)
        assert_close(own, gradients, rtol=20 * close, atol=20 * close)

    check()


@each_kind
def test_keys_and_errors_are_all_of_the_gradient(kind: str) -> None:
    """dL/dW = E^T X of each map, in the layout of the input, without a row for padding."""

    @given(cases(kind))
    def check(case: Case) -> None:
        _, visible = case.modules()
        arguments, spies = case.arguments(), {name: Spy() for name in visible.maps()}
        for name, spy in spies.items():
            visible.tap(name, spy)
        _, gradients = case.everything(visible, arguments)
        of_parameters = dict(zip(dict(visible.named_parameters()), gradients, strict=False))
        seen = set()
        for name, found in visible.maps().items():
            keys, errors = map(rows, (spies[name].keys[0], spies[name].errors[0]))
            if case.layout in ("packed", "unsorted"):
                assert isinstance(spies[name].keys[0], PackedSequence)
                assert len(keys) == len(errors) == sum(case.lengths)
            else:
                assert spies[name].keys[0].shape[:-1] == spies[name].errors[0].shape[:-1] == arguments[0].shape[:-1]
            assert (keys.shape[1], errors.shape[1]) == (found.d_in, found.d_out)
            product = torch.einsum("so,si->oi", errors, keys)
            for parameter, columns in found.columns.items():
                if parameter in of_parameters:  # there may be no bias
                    expected = errors.sum(0) if columns is None else product[:, slice(*columns)]
                    assert_close(of_parameters[parameter], expected, rtol=1e-9, atol=1e-9)
                    seen.add(parameter)
        assert seen == set(of_parameters)

    check()


def rows(shown: Any) -> Tensor:
    data: Tensor = shown.data if isinstance(shown, PackedSequence) else shown.flatten(0, -2)
    assert not data.requires_grad
    return data


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_EACH_SORT, ids=named)
def test_gradcheck(case: Case) -> None:
    _, visible = case.modules()
    names, arguments = list(dict(visible.named_parameters())), case.arguments()

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = visible

        def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
            return tuple(case.called(self.module, arguments))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        weights = {f"module.{name}": tensor for name, tensor in zip(names, tensors, strict=False)}
        results: tuple[Tensor, ...] = torch.func.functional_call(Called(), weights, tensors[len(names) :])
        return results

    assert torch.autograd.gradcheck(run, (*visible.parameters(), *arguments))


@each_kind
def test_a_padded_batch_is_never_looked_at(kind: str) -> None:
    """What is beyond a sequence's end, in memory or in steps, changes nothing: not even a NaN."""
    case = Case(kind, {"bidirectional": True, "batch_first": True}, "unsorted", (1, 4, 2))
    _, visible = case.modules()
    (inputs,) = case.arguments()
    spoilt = inputs.detach().clone()
    for example, length in enumerate(case.lengths):
        spoilt[example, length:] = float("nan")
    assert_close(case.called(visible, [spoilt]), case.called(visible, [inputs]), rtol=0, atol=0)
    alone = torch.cat([visible(inputs[i : i + 1, :n])[0][0] for i, n in enumerate(case.lengths)])
    packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor(case.lengths), True, enforce_sorted=False)
    padded, _ = nn.utils.rnn.pad_packed_sequence(visible(packed)[0], batch_first=True)
    assert_close(torch.cat([padded[i, :n] for i, n in enumerate(case.lengths)]), alone)


@each_kind
def test_a_relu_that_explodes_in_one_sequence_is_no_others_trouble(kind: str) -> None:
    case = Case("RNN", {"nonlinearity": "relu"}, "packed", (60, 2))
    fused, visible = case.modules(torch.float32)
    arguments = case.arguments(torch.float32)
    for module in (fused, visible):
        nn.init.constant_(module.get_parameter("weight_hh_l0"), 9.0)
    found, expected = (case.called(module, arguments)[1][0, 1] for module in (visible, fused))
    assert_close(found, expected)
    found, expected = (torch.autograd.grad(out.sum(), arguments)[0][:, 1] for out in (found, expected))
    assert_close(found, expected)


@each_kind
@pytest.mark.parametrize("options", [{}, {"bias": False, "bidirectional": True, "num_layers": 2}])
def test_state_dicts_are_interchangeable_and_seeds_the_same(kind: str, options: dict[str, Any]) -> None:
    made = []
    for module in (getattr(nn, kind), getattr(dualform.nn, kind)):
        torch.manual_seed(0)
        made.append(module(3, 4, **options))
    fused, visible = made
    assert_close(visible.state_dict(), fused.state_dict(), rtol=0, atol=0)
    assert list(visible.state_dict()) == list(fused.state_dict())
    fused.load_state_dict(visible.state_dict())


@each_kind
def test_unfused_it_is_the_same_object_and_says_the_same(kind: str) -> None:
    case = Case(kind, {"bidirectional": True}, given=True)
    fused, _ = case.modules()
    arguments, weights = case.arguments(), list(fused.parameters())
    expected = case.everything(fused, arguments)
    assert unfuse(fused) is fused
    assert type(fused) is getattr(dualform.nn, kind)
    assert all(own is before for own, before in zip(fused.parameters(), weights, strict=True))
    assert_close(case.everything(fused, arguments), expected)


@each_kind
@pytest.mark.parametrize("layout", ["unbatched", "batched", "packed"])
def test_results_may_be_changed_in_place_and_gone_back_twice(kind: str, layout: str) -> None:
    case, found = Case(kind, {"num_layers": 2}, layout, (3,)), []
    arguments = case.arguments()
    for module in case.modules():
        results = case.called(module, arguments)
        loss = torch.stack([result.mul_(2).square().sum() for result in results]).sum()
        found += [torch.autograd.grad(loss, list(module.parameters()), retain_graph=True) for _ in range(2)]
    assert_close(found[2], found[0])
    assert_close(found[3], found[2], rtol=0, atol=0)


@each_kind
def test_copies_have_no_taps(kind: str) -> None:
    _, visible = Case(kind).modules()
    spy, inputs = Spy(), torch.randn(5, 3, 3, dtype=torch.float64)
    name = next(iter(visible.maps()))
    visible.tap(name, spy)
    for other in (copy.deepcopy(visible), copy.copy(visible), pickle.loads(pickle.dumps(visible))):
        other(inputs)
        assert not spy.keys
        other.tap(name, Spy())
    visible(inputs)
    assert len(spy.keys) == 1


@each_kind
@pytest.mark.parametrize("packed", [False, True])
def test_autocast_changes_nothing(kind: str, packed: bool) -> None:
    case = Case(kind, {}, "packed" if packed else "batched", (4, 2), given=True)
    _, visible = case.modules(torch.float32)
    arguments = case.arguments(torch.float32)
    expected = case.everything(visible, arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(case.everything(visible, arguments), expected, rtol=0, atol=0)
        assert case.called(visible, [one.bfloat16() for one in arguments])[0].dtype == torch.float32


@each_kind
def test_bad_inputs_raise_as_in_torch(kind: str) -> None:
    lengths = [torch.randn(2, 4), torch.randn(1, 4)]
    for module in Case(kind).modules(torch.float32):
        for inputs in (torch.randn(5, 2, 4), torch.randn(5, 4), torch.randn(3), torch.randn(1, 5, 2, 3)):
            with pytest.raises((ValueError, RuntimeError), match="input"):
                module(inputs)
        with pytest.raises(RuntimeError):
            module(pack_sequence(lengths))
        with pytest.raises(ValueError, match="dtype"):
            module(torch.randn(5, 2, 3).double())
        with pytest.raises(RuntimeError, match="larger than 0"):
            module(torch.randn(0, 2, 3))


@each_kind
@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 2, 4), (1, 2, 5), (2, 4)])
def test_wrong_states_raise_as_in_torch(kind: str, shape: tuple[int, ...]) -> None:
    state: Any = torch.zeros(shape)
    for module in Case(kind).modules(torch.float32):
        for inputs in (torch.randn(5, 2, 3), pack_sequence([torch.randn(2, 3), torch.randn(1, 3)])):
            with pytest.raises((RuntimeError, IndexError)):
                module(inputs, (state, state) if kind == "LSTM" else state)

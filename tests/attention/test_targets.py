"""Targets that cannot be followed back to a layer, or only by a detour; and models that were compiled."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.errors import QueryError
from dualform.memory import Memory

INPUTS = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Runs its middle part in a way of its own, and does something to its outputs."""

    def __init__(
        self,
        around: Callable[[nn.Module, Tensor], Tensor] = lambda middle, hidden: middle(hidden),
        after: Callable[[Tensor], Tensor] = lambda outputs: outputs,
    ) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.around, self.after = around, after

    def forward(self, inputs: Tensor) -> Tensor:
        return self.after(self.last(self.around(self.middle, self.first(inputs).tanh()).tanh()))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Memory, Network]:
    torch.manual_seed(1)
    model = Network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("targets") / "run"
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for _ in range(4):
            recorder.tag(label=torch.arange(6))
            optimizer.zero_grad()
            model(torch.randn(6, 5, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
    return dualform.load(path), model


def like(model: Network, variant: Network) -> Network:
    variant.double().load_state_dict(model.state_dict())
    return variant


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (lambda outputs: outputs.log_softmax(dim=1), "returns log-probabilities, .* let it return logits"),
        (lambda outputs: outputs.softmax(dim=1), "returns probabilities, .* let it return logits"),
        (lambda outputs: outputs.float().log_softmax(dim=1), "returns log-probabilities"),
        (lambda outputs: outputs.bfloat16().softmax(dim=1), "returns probabilities"),
    ],
)
def test_outputs_that_are_normalised(
    case: tuple[Memory, Network], after: Callable[[Tensor], Tensor], says: str
) -> None:
    memory, model = case
    layer = memory.attend(like(model, Network(after=after)), INPUTS)["last"]
    for target in (1, None):
        with pytest.raises(QueryError, match=says):
            layer.contribution(target)
    exact = layer.contribution(torch.eye(3, dtype=torch.float64)[1])
    assert_close(exact.output(), model(INPUTS)[:, 1].detach())


@pytest.mark.parametrize("after", [torch.tanh, torch.sigmoid, lambda outputs: outputs[:, :1].log_softmax(dim=1)])
def test_other_outputs_are_no_probabilities(case: tuple[Memory, Network], after: Callable[[Tensor], Tensor]) -> None:
    memory, model = case
    contribution = memory.attend(like(model, Network(after=after)), INPUTS)["last"].contribution(0)
    assert contribution.first_order


def test_a_layer_that_is_checkpointed(case: tuple[Memory, Network]) -> None:
    """It is called once more on the way back, which is not another query."""
    memory, model = case

    def squashed(middle: nn.Module, hidden: Tensor) -> Tensor:
        output: Tensor = middle(hidden).tanh()
        return output

    def around(middle: nn.Module, hidden: Tensor) -> Tensor:
        output: Tensor = checkpoint(squashed, middle, hidden, use_reentrant=False)
        return output

    plain, checkpointed = (like(model, Network(how)) for how in (squashed, around))
    for name in memory.layers:
        found, expected = (memory.attend(one, INPUTS)[name].contribution(1) for one in (checkpointed, plain))
        assert_close(found.directions, expected.directions)
        assert_close(torch.from_numpy(found.total()["total"]), torch.from_numpy(expected.total()["total"]))


def without_gradients(middle: nn.Module, hidden: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = middle(hidden)
    return output


def reentrant(middle: nn.Module, hidden: Tensor) -> Tensor:
    output: Tensor = checkpoint(middle, hidden.detach().requires_grad_(), use_reentrant=True)
    return output


@pytest.mark.parametrize("around", [without_gradients, reentrant])
def test_a_layer_that_is_called_without_gradients(
    case: tuple[Memory, Network], around: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    memory, model = case
    spotlight = memory.attend(like(model, Network(around)), INPUTS)
    with pytest.raises(QueryError, match="calls layer 'middle' without gradients.* use_reentrant=False"):
        spotlight["middle"].contribution(1)
    assert_close(spotlight["last"].contribution(1).output(), model(INPUTS)[:, 1].detach())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # torch's own
def test_a_layer_before_reentrant_checkpointing(case: tuple[Memory, Network]) -> None:
    memory, model = case

    def around(middle: nn.Module, hidden: Tensor) -> Tensor:
        output: Tensor = checkpoint(middle, hidden, use_reentrant=True)
        return output

    with pytest.raises(QueryError, match="followed back through re-entrant checkpointing: .* use_reentrant=False"):
        memory.attend(like(model, Network(around)), INPUTS)["first"].contribution(1)


def test_a_model_inside_of_vmap(case: tuple[Memory, Network]) -> None:
    memory, model = case
    with pytest.raises(QueryError, match="none of the recorded layers was called .* outside of torch.vmap"):
        torch.vmap(lambda inputs: memory.attend(model, inputs)["first"].output())(INPUTS[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_a_model_that_was_compiled(case: tuple[Memory, Network], fullgraph: bool, warm: bool) -> None:
    memory, model = case
    torch.compiler.reset()
    compiled = torch.compile(model.eval(), backend="eager", fullgraph=fullgraph)
    assert isinstance(compiled, nn.Module)
    if warm:
        with torch.no_grad():
            compiled(INPUTS)
    found, expected = (memory.attend(one, INPUTS)["middle"] for one in (compiled, model))
    assert_close(found.queries, expected.queries)
    assert_close(found.contribution(1).directions, expected.contribution(1).directions)
    assert compiled(INPUTS).requires_grad  # and it goes on as it was

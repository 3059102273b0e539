"""The product: on random runs of every optimiser, everything the memory says agrees with a dense float64 reference.

Optimisers that divide elementwise, as Adam does, blow rounding errors up where a gradient cancels to
nothing. So gradients have to be well-conditioned: no entry may be less than a thousandth of what it is a sum
of, |G| >= 1e-3 sum_t |e_t x_t^T|.
"""

import pytest
import torch
from hypothesis import given, settings

from tests.optimizers import OPTIONS
from tests.recipes import CLASSES, Recipe, StepRecipe, Trained, recipes, recorded

EACH = settings(max_examples=settings().max_examples // 4)  # of every optimiser


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def examples(trained: Trained, label: int) -> list[int]:
    return [number for number, found in enumerate(trained.labels) if found == label]


@pytest.mark.parametrize("optimizer", OPTIONS)
def test_rebuilt_weights_are_the_trained_ones(optimizer: str) -> None:
    @EACH
    @given(recipes([optimizer]))
    def holds(recipe: Recipe) -> None:
        trained, memory = recorded(recipe)
        for layer in memory.layers:
            for name, weight in memory.weights(layer).items():
                assert_close(weight, trained.states[-1][name])
                assert_close(weight, trained.reference.weight(name))
        certificate = memory.verify()
        assert certificate.ok
        assert certificate.relative_error < 1e-9
        assert certificate.steps == certificate.steps_certified == len(recipe.steps)

    holds()


@given(recipes())
def test_until_is_the_model_as_it_was(recipe: Recipe) -> None:
    trained, memory = recorded(recipe)
    for step, state in enumerate(trained.states):
        for layer in memory.layers:
            for name, weight in memory.until(step).weights(layer).items():
                assert_close(weight, state[name])


@given(recipes())
def test_where_is_the_initial_part_and_the_chosen_examples(recipe: Recipe) -> None:
    trained, memory = recorded(recipe)
    for label in set(trained.labels):
        for layer in memory.layers:
            for name, weight in memory.where(label=label).weights(layer).items():
                assert_close(weight, trained.reference.weight(name, examples(trained, label)))


@given(recipes())
def test_until_and_where_go_together(recipe: Recipe) -> None:
    trained, memory = recorded(recipe)
    step = len(recipe.steps) // 2
    for label in range(CLASSES):
        if label not in trained.labels:
            continue
        for layer in memory.layers:
            for name, weight in memory.until(step).where(label=label).weights(layer).items():
                assert_close(weight, trained.references[step].weight(name, examples(trained, label)))


@given(recipes())
def test_output_is_the_layers_output_and_parts_add_up(recipe: Recipe) -> None:
    trained, memory = recorded(recipe)
    inputs = torch.randn(4, recipe.widths[0], dtype=torch.float64)
    spotlight = memory.attend(trained.model, inputs)
    last = memory.layers[-1]
    assert spotlight.note is None
    assert_close(spotlight[last].output(), trained.model(inputs).detach())
    queries = {last: spotlight[last].queries}
    initial = spotlight[last].initial()
    labels = sorted(set(trained.labels))
    parts = [memory.where(label=label).attend(queries)[last].output() - initial for label in labels]
    assert_close(initial + sum(parts, torch.zeros_like(initial)), spotlight[last].output())


def said_by(trained: Trained, layer: str, example: int, query: torch.Tensor) -> torch.Tensor:
    """The output of a layer whose parameters are nothing but one example's piece of them."""
    pieces = {n: p[example].weight for n, p in trained.reference.pieces.items() if example in p}
    weight, bias = pieces.get(f"{layer}.weight"), pieces.get(f"{layer}.bias")
    return (0 if weight is None else weight @ query) + (torch.zeros(1).double() if bias is None else bias)


@pytest.mark.parametrize("optimizer", OPTIONS)
def test_a_contribution_is_what_an_examples_own_piece_of_the_weights_says(optimizer: str) -> None:
    @EACH
    @given(recipes([optimizer]))
    def holds(recipe: Recipe) -> None:
        trained, memory = recorded(recipe)
        inputs = torch.randn(2, recipe.widths[0], dtype=torch.float64)
        spotlight = memory.attend(trained.model, inputs)
        for layer in memory.layers:
            direction = torch.randn(2, spotlight[layer].output().shape[1], dtype=torch.float64)
            contribution = spotlight[layer].contribution(direction)
            everything = contribution.top(len(trained.labels))
            for row in everything.rows():
                query = spotlight[layer].queries[row["query"]]
                said = said_by(trained, layer, row["id"], query) @ direction[row["query"]]
                assert_close(torch.tensor(row["score"], dtype=torch.float64), said)
            totals = torch.from_numpy(contribution.total()["total"])
            assert_close(contribution.initial() + totals, contribution.output())
            assert_close(contribution.output(), (spotlight[layer].output() * direction).sum(dim=1))

    holds()


@given(recipes())
def test_contributions_to_a_class_and_the_initial_part_are_the_logit(recipe: Recipe) -> None:
    trained, memory = recorded(recipe)
    inputs = torch.randn(3, recipe.widths[0], dtype=torch.float64)
    logits = trained.model(inputs).detach()
    contribution = memory.attend(trained.model, inputs)[memory.layers[-1]].contribution([0, 2, 1])
    for table in (contribution.total(by="label"), contribution.timeline(bins=3)):
        totals = torch.stack([torch.from_numpy(table.where(query=n)["total"]).sum() for n in range(3)])
        assert_close(contribution.initial() + totals, logits[range(3), [0, 2, 1]])


@given(recipes())
def test_a_view_of_everything_is_everything(recipe: Recipe) -> None:
    _, memory = recorded(recipe)
    everything = memory.where(step=range(len(recipe.steps)))
    for layer in memory.layers:
        for name, weight in memory.weights(layer).items():
            assert_close(everything.weights(layer)[name], weight)


@pytest.mark.slow
def test_small_factors_are_found_whatever_the_probes() -> None:
    """A zeroed pass, then clipping after each micro-batch: plain least squares missed it 7 times in 250."""
    step = StepRecipe(
        lr=0.01, momentum=0.5, weight_decay=0.01, dampening=0.0, batches=(1, 3), clip=0.001, clip_each=True,
        zeroed=True, frozen=None,
    )  # fmt: skip
    recipe = Recipe((2, 5, 3, 3), False, "SGD", {"nesterov": True, "momentum": 0.9}, 0, 2.0, (step,), seed=16276)
    for _ in range(100):  # every recorder draws probes of its own
        _, memory = recorded(recipe)
        assert memory.steps == 1

"""To train again without some examples is to weigh their losses by 0, as a naive loop does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dualform
from dualform.store import InMemory
from tests.recipe.trainings import BATCH, LABELS, TASKS, assert_same_state, batch, recipe_of, rows

STEPS = 9
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def double(task: str, optimizer: str = "SGD", options: dict[str, Any] = SGD, **entries: Any) -> dualform.Recipe:
    """A recipe whose numbers are float64."""
    entry = {"words": "tokens", "conv": "images", "mlp": "flat"}.get(task, "sequence")

    def doubled(step: int) -> dict[str, Any]:
        return {name: one.double() if one.is_floating_point() else one for name, one in batch(step).items()}

    recipe = recipe_of(task, optimizer, options, batch=doubled, **entries)
    assert entry in doubled(0)
    return replace(recipe, model=lambda: TASKS[task].model().double())


def naive(recipe: dualform.Recipe, start: nn.Module, weights: dict[int, float], steps: int = STEPS) -> nn.Module:
    """A plain loop: no recorder, no parts, no snapshots."""
    model = recipe.model()
    model.load_state_dict(start.state_dict())
    model.train()
    optimizer: Any = recipe.optimizer(model)
    state: Any = None
    for step in range(steps):
        content = recipe.batch(step)
        of_each = torch.tensor([weights.get(i, 1.0) for i in content["id"].tolist()], dtype=torch.float64)
        if recipe.carries:
            losses, state = recipe.losses(model, content, state)
            state = tuple(one.detach() for one in state)
        else:
            losses = recipe.losses(model, content)
        optimizer.zero_grad()
        ((losses * of_each).sum() / BATCH).backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1.0 if recipe.schedule is None else recipe.schedule(step))
        optimizer.step()
    return model


def trained(recipe: dualform.Recipe, **options: Any) -> tuple[dualform.Memory, nn.Module]:
    """A memory, and the model that its training began with."""
    where = InMemory()
    recipe.train(where, STEPS, every=3, **{"keep": "snapshots", **options})
    memory = dualform.load(where, recipe)
    return memory, memory.until(0).model(recipe.model())


def assert_near(model: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(dict(model.named_parameters()), dict(expected.named_parameters()), rtol=1e-9, atol=1e-9)


TRAININGS = [
    ("mlp", "SGD", SGD, {}), ("mlp", "SGD", SGD, {"clip": 0.3, "accumulate": 3}), ("mlp", "Adam", {"lr": 0.1}, {}),
    ("conv", "SGD", SGD, {"schedule": lambda step: 1 / (1 + step)}), ("words", "AdamW", {"lr": 0.1}, {}),
    ("lstm", "SGD", SGD, {"accumulate": 2}), ("carried", "SGD", SGD, {"clip": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "optimizer", "options", "entries"), TRAININGS)
@pytest.mark.parametrize("keep", ["snapshots", "slots"])
def test_a_naive_loop(task: str, optimizer: str, options: dict[str, Any], entries: dict[str, Any], keep: str) -> None:
    recipe = double(task, optimizer, options, **entries)
    memory, start = trained(recipe, keep=keep)
    of_label = {i for i, label in enumerate(LABELS.tolist()) if label == 1}
    ids = {*range(len(LABELS))}
    asked: list[tuple[dict[str, Any], dict[int, float]]] = [
        ({"without": {"label": 1}}, dict.fromkeys(of_label, 0.0)),
        ({"without": {"id": [3, 4]}}, {3: 0.0, 4: 0.0}),
        ({"without": {"label": 1, "id": sorted(of_label)[0]}}, {sorted(of_label)[0]: 0.0}),
        ({"where": {"label": [0, 1]}}, {i: 0.0 for i in ids if LABELS[i] == 2}),
        ({"weights": {5: 0.5, 2: 0.25, 7: 0}}, {5: 0.5, 2: 0.25, 7: 0.0}),
        ({"weights": {1: 1}}, {}),
    ]
    for question, weights in asked:
        assert_near(memory.retrain(**question), naive(recipe, start, weights))


@given(weights=st.dictionaries(st.integers(0, 23), st.sampled_from([0.0, 0.3, 1.0]), max_size=6))
@pytest.mark.slow
def test_any_weights(weights: dict[int, float]) -> None:
    recipe = double("mlp")
    memory, start = trained(recipe)
    seen = {i for step in range(STEPS) for i in rows(step).tolist()}
    kept = {i: weight for i, weight in weights.items() if i in seen}
    assert_near(memory.retrain(weights=kept), naive(recipe, start, kept))


@pytest.mark.parametrize("first", [0, 1, 2, 4, 7, None])
def test_only_the_steps_it_has_to(first: int | None) -> None:
    """From the last snapshot before the first step that the example is in."""

    def with_one(step: int) -> dict[str, Any]:
        made = batch(step)
        ids = made["id"].clone()
        if step == first or (first is None and step == STEPS + 5):
            ids[0] = 1000
        return {**made, "id": ids}

    recipe = recipe_of("dropout", batch=with_one)
    where = InMemory()
    whole = recipe.train(where, STEPS, every=3, keep="snapshots")
    memory, called = dualform.load(where, recipe), []
    question: dict[str, Any] = {"without": {"id": 1000}} if first is not None else {"weights": {3: 1.0}}
    model = memory.retrain(**question, progress=lambda step, of: called.append((step, of)))
    due = STEPS - (first // 3 * 3) if first is not None else 0
    assert called == [(step + 1, due) for step in range(due)]
    if first is None:
        assert_same_state(model, whole)


def test_nothing_is_different_without_examples_of_weight_one() -> None:
    recipe = recipe_of("dropout", "AdamW", {"lr": 0.01})
    where = InMemory()
    whole = recipe.train(where, STEPS, every=100, keep="snapshots")
    assert_same_state(dualform.load(where, recipe).retrain(weights={}), whole)


@pytest.mark.parametrize("keep", ["slots", "snapshots", {"0": "slots", "*": "snapshots"}])
def test_a_recorded_one(keep: Any, tmp_path: Path) -> None:
    recipe = recipe_of("dropout", "AdamW", {"lr": 0.01, "weight_decay": 0.0}, clip=1.0)
    recipe.train(tmp_path / "run", STEPS, every=3, keep=keep, about={"of": "digits"})
    memory, called = dualform.load(tmp_path / "run", recipe), []
    model = memory.retrain(
        without={"label": 1}, record=tmp_path / "again", progress=lambda step, of: called.append((step, of))
    )
    assert called == [(step + 1, STEPS) for step in range(STEPS)]
    assert_same_state(memory.retrain(without={"label": 1}), model)
    run = dualform.store.Run(tmp_path / "again")
    assert (run.steps, run.manifest.about) == (STEPS, {"of": "digits"})
    assert [layer.stored for layer in run.manifest.layers] == [
        layer.stored for layer in dualform.store.Run(tmp_path / "run").manifest.layers
    ]
    weigh = lambda content: (content["label"] != 1).double()  # noqa: E731
    again = dualform.load(tmp_path / "again", recipe.weighed(weigh))
    assert again.verify().ok
    assert again.where(label=1).added("0")["0.weight"].abs().max() == 0
    if keep != "slots":
        with pytest.raises(dualform.errors.RecipeError, match="has a loss of"):
            dualform.load(tmp_path / "again", recipe).verify()  # without its weights


def test_weights_of_its_own_are_multiplied() -> None:
    recipe = double("mlp", weigh=lambda content: (content["id"] % 2 + 1).double() / 2)
    memory, start = trained(recipe)
    own = {i: (i % 2 + 1) / 2 for i in range(24)}
    assert_near(memory.retrain(weights={3: 0.5}), naive(recipe, start, {**own, 3: 0.5 * own[3]}))


def test_an_interrupted_question_is_asked_again(tmp_path: Path) -> None:
    recipe = recipe_of("conv", "SGD+Adam")
    recipe.train(tmp_path, STEPS, every=3, keep="snapshots")
    memory, calls = dualform.load(tmp_path, recipe, cache=0), [0]
    losses = recipe.losses

    def stop(step: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.retrain(without={"label": 1}, progress=stop)

    def interrupted(model: nn.Module, content: Any) -> Any:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt
        return losses(model, content)

    memory = dualform.load(tmp_path, replace(recipe, losses=interrupted), cache=0)
    with pytest.raises(KeyboardInterrupt):
        memory.without(label=1).weights("0")
    expected = dualform.load(tmp_path, recipe).without(label=1).weights("0")
    torch.testing.assert_close(memory.without(label=1).weights("0"), expected)
    assert memory.verify().ok

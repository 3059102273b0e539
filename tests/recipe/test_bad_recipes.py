"""Recipes and questions that are wrong: each is one clear error, and nothing of them is left behind."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import dualform
from dualform.errors import DualformError, NotRecorded, QueryError, RecipeError, RunExists, UnknownName
from dualform.recipe.recipe import Batch
from tests.recipe.trainings import (
    EXAMPLES,
    IMAGES,
    LABELS,
    Remembers,
    assert_same_state,
    batch,
    carried_losses,
    optimizer_of,
    recipe_of,
)  # fmt: skip

STEPS, OPTIONS = 8, {"every": 4, "keep": "snapshots"}


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Global random states, deterministic algorithms and threads are as they were, even after an error."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    before = _switches(), _random_states()
    try:
        yield
    finally:
        assert (_switches(), _random_states()) == before


def _switches() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        getattr(torch.utils, "deterministic").fill_uninitialized_memory,  # noqa: B009 - which torch does not type
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(),
    )


def _random_states() -> tuple[Any, ...]:
    drawn = np.random.get_state(legacy=False)
    assert isinstance(drawn, dict)
    return torch.get_rng_state().tolist(), random.getstate(), drawn["state"]["key"].tolist(), drawn["state"]["pos"]


class Drifting:
    """Batches that are others whenever they are asked for."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> dict[str, Any]:
        self.calls += 1
        return {**batch(step), "flat": batch(step)["flat"] + self.calls / 10}


def with_entries(**entries: Any) -> Callable[[int], dict[str, Any]]:
    return lambda step: {**batch(step), **entries}


def mean(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["flat"]), batch["label"])


def handing_on(state: Any) -> Callable[..., Any]:
    return lambda model, batch, before: (carried_losses(model, batch, None)[0], state)


TRAINED = {
    "an id twice": ({"batch": with_entries(id=[1] * 6)}, r"batch\(0\) has example 1 more than once"),
    "no id": ({"batch": lambda step: {"flat": 1}}, "batch.0. has no 'id'"),
    "no mapping": ({"batch": lambda step: [1]}, "must return a mapping"),
    "ids of no kind": ({"batch": with_entries(id=torch.zeros(6))}, "'id' must have a whole number or a string"),
    "an id for none": ({"batch": with_entries(id=torch.zeros((), dtype=torch.long))}, "'id' must have"),
    "a missing tag": ({"tags": ["label", "colour"]}, "batch.0. has no 'colour'"),
    "a mean": ({"losses": mean}, 'not their mean: reduction="none"'),
    "losses of others": ({"losses": lambda model, batch: model(batch["flat"])[:2, 0]}, "each of the 6 examples"),
    "no tensor": ({"losses": lambda model, batch: 1.0}, "must return a tensor"),
    "a state by default": ({"losses": lambda model, batch, state=None: (1, 2)}, "a third argument, without a default"),
    "nothing to learn": ({"losses": lambda model, batch: torch.zeros(6)}, "do not depend on any trainable parameter"),
    "no state": ({"losses": lambda model, batch, state: 1}, "two things"),
    "a state of nothing": ({"losses": handing_on(()), "model": Remembers}, "losses hands on tuple"),
    "a state in a dict": ({"losses": handing_on({}), "model": Remembers}, "losses hands on dict"),
    "half a state": ({"losses": handing_on((torch.zeros(1), None)), "model": Remembers}, "losses hands on NoneType"),
    "a complex state": ({"losses": handing_on(torch.ones(2) * 1j), "model": Remembers}, "a torch.complex64 tensor"),
    "no model": ({"model": lambda: None}, "an nn.Module, got None"),
    "no optimiser": ({"optimizer": lambda model: 3}, "torch.optim.Optimizer"),
    "too few for parts": ({"accumulate": 7}, "6 examples, too few for 7 parts"),
    "weights of others": ({"weigh": lambda batch: torch.ones(2)}, "a weight for each of 6 examples"),
    "a step too far": ({"schedule": lambda step: float("nan")}, "NaN or infinite"),
}


@pytest.mark.parametrize(("entries", "says"), TRAINED.values(), ids=TRAINED)
def test_a_recipe_that_cannot_be_trained(entries: dict[str, Any], says: str, tmp_path: Path) -> None:
    with nothing_left_behind(), pytest.raises(DualformError, match=says):
        replace(recipe_of(), **entries).train(tmp_path / "run", STEPS, **OPTIONS)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("model", nn.Linear(1, 1)), ("optimizer", None), ("batch", [1]), ("losses", "x"), ("tags", "label"),
        ("tags", ["id"]), ("tags", None), ("seed", -1), ("seed", 1.5), ("seed", True), ("schedule", 3), ("clip", 0),
        ("clip", "1"), ("clip", float("nan")), ("accumulate", 0), ("accumulate", 1.5), ("autocast", "bfloat16"),
        ("weigh", 1),
    ],
)  # fmt: skip
def test_an_entry_that_is_none(entry: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=entry):
        replace(recipe_of(), **{entry: value})


def test_a_state_is_not_handed_on_in_parts() -> None:
    with pytest.raises(RecipeError, match="leave out accumulate"):
        recipe_of("carried", accumulate=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({"steps": steps}, "steps must be a whole number") for steps in (0, -1, 1.5, True, "3")),
        *(({"every": every}, "every must be a whole number") for every in (0, -1, 1.5, "x", True)),
        *(({"threads": threads}, "threads must be a whole number") for threads in (0, -1, "2", 10**9)),
        *(({"keep": keep}, "keep must be") for keep in ("x", None, {"*": "bytes"}, ["slots"])),
        ({"keep": {"nope": "snapshots"}}, "no layer 'nope'"),
        ({"keep": {"*": "slots", "0": "snapshots"}}, "patterns before '0' have said"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"progress": 3}, "progress must be a function"),
        ({"evry": 3}, "no option of Recipe.train 'evry'; choose from 'keep', 'every'"),
    ],
)
def test_an_option_that_is_none(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with nothing_left_behind(), pytest.raises(DualformError, match=says):
        recipe_of().train(tmp_path / "run", **{"steps": STEPS, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keep", "stored"),
    [
        ("slots", [True, True]), ("snapshots", [False, False]), ({}, [True, True]), ({"0": "snapshots"}, [False, True]),
        ({"0": "slots", "*": "snapshots"}, [True, False]), ({"[0-1]": "snapshots", "*": "slots"}, [False, True]),
    ],
)  # fmt: skip
def test_what_is_kept_of_which_layer(keep: Any, stored: list[bool], tmp_path: Path) -> None:
    recipe_of().train(tmp_path, 1, keep=keep)
    assert [layer.stored for layer in dualform.store.Run(tmp_path).manifest.layers] == stored


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    recipe_of(options={"lr": 0.1, "momentum": 0.9}).train(path, STEPS, **OPTIONS)
    return path


def mlp_of(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 5), *(make() for make in layers))


def linear(d_in: int, d_out: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(d_in, d_out)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "data": ({"batch": lambda step: {**batch(step), "flat": batch(step)["flat"] * 1.1}}, "step 0 has a loss of"),
    "drifting data": ({"batch": Drifting()}, "step 0 has a loss of"),
    "order": ({"batch": lambda step: {**batch(step), "id": batch(step)["id"].flip(0)}}, "batch.0. has other examples"),
    "later examples": (
        {"batch": lambda step: {**batch(step), "id": batch(step)["id"].roll(step // 2)}},
        "batch.2. has other examples than in training",
    ),
    "seed": ({"seed": 1}, "'0.weight' is not what .* began with: another seed"),
    "width": ({"model": mlp_of(nn.ReLU, linear(5, 4))}, "'2.weight' has shape .4, 5., that of the run .3, 5."),
    "fewer layers": ({"model": mlp_of()}, "no '2.weight'"),
    "more layers": ({"model": mlp_of(nn.ReLU, linear(5, 3), linear(3, 3))}, "'3.weight', which the run does"),
    "activation": ({"model": mlp_of(nn.Tanh, linear(5, 3))}, "step 0 has a loss of"),
    "optimiser": ({"optimizer": optimizer_of("AdamW", {})}, "trains with 'AdamW', the run was trained with 'SGD'"),
    "optimisers": ({"optimizer": optimizer_of("SGD+Adam", {})}, "has 2 optimisers, the run was trained with 1"),
    "rate": ({"optimizer": optimizer_of("SGD", {"lr": 0.2, "momentum": 0.9})}, r"step \d has a loss of"),
    "clipping": ({"clip": 0.1}, r"step \d has a loss of"),
    "loss": ({"losses": lambda m, b: 2 * recipe_of().losses(m, b)}, "step 0 has a loss of"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ask"),
    # a training that goes on looks at the first steps
    [
        (name, ask)
        for name in OTHERS
        for ask in ("slots", "retrain", "train")
        if (name, ask) != ("later examples", "train")
    ],
)
def test_another_recipe_than_that_of_the_run(run: Path, name: str, ask: str) -> None:
    entries, says = OTHERS[name]
    recipe = replace(recipe_of(options={"lr": 0.1, "momentum": 0.9}), **entries)
    if "loss of" in says and ask == "slots":
        says += ".* of layer '0'"
    if "seed" in entries and ask == "train":
        says = "with seed 0, and the recipe has 1"
    with nothing_left_behind(), pytest.raises(DualformError, match=says):
        if ask == "train":
            recipe.train(run, STEPS + 1, **OPTIONS)
        memory = dualform.load(run, recipe)
        memory.verify() if ask == "slots" else memory.retrain(without={"label": 1})
    assert dualform.store.Run(run).steps == STEPS


def test_another_optimiser_is_named_wherever_slots_are_made_again(run: Path) -> None:
    memory = dualform.load(run, recipe_of("mlp", "AdamW", {}))
    with pytest.raises(RecipeError, match="AdamW"):
        memory.where(step=STEPS - 1).weights("0")


def test_a_run_that_drifted_is_refused_by_its_own_recipe(tmp_path: Path) -> None:
    recipe = recipe_of(batch=Drifting())
    recipe.train(tmp_path, STEPS, **OPTIONS)
    with nothing_left_behind(), pytest.raises(RecipeError, match="the data, the model or the loss are others"):
        dualform.load(tmp_path, recipe).verify()


def test_batches_may_draw_random_numbers(tmp_path: Path) -> None:
    """Those of a step are seeded, also where only its batch is looked at."""

    def drawn(step: int) -> dict[str, Any]:
        ids = torch.randperm(EXAMPLES)[:6]
        return {"id": ids, "label": LABELS[ids], "flat": IMAGES[ids].flatten(1)[:, :6]}

    recipe = recipe_of(batch=drawn)
    whole = recipe.train(tmp_path / "whole", STEPS, **OPTIONS)
    recipe.train(tmp_path / "run", STEPS - 3, **OPTIONS)
    assert_same_state(recipe.train(tmp_path / "run", STEPS, **OPTIONS), whole)
    memory = dualform.load(tmp_path / "run", recipe)
    assert memory.verify().ok
    memory.retrain(without={"label": 1})


def test_data_that_have_shrunk(tmp_path: Path) -> None:
    def of_first(count: int) -> dualform.Recipe:
        return dualform.Recipe.of_dataset(
            data, 4, columns=["flat", "label"], model=recipe_of().model, optimizer=recipe_of().optimizer,
            losses=recipe_of().losses, tags=["label"],
        )  # fmt: skip

    examples: Any = [(IMAGES[i].flatten()[:6], LABELS[i]) for i in range(EXAMPLES)]
    data: Any = examples
    recipe = of_first(EXAMPLES)
    recipe.train(tmp_path, STEPS, **OPTIONS)
    data = examples[:-5]
    with pytest.raises(RecipeError, match="batch.0. has other examples"):
        dualform.load(tmp_path, of_first(EXAMPLES - 5)).verify()
    del examples[-5:]
    with pytest.raises(RecipeError, match="the dataset has lost examples"):
        dualform.load(tmp_path, recipe).verify()
    with pytest.raises(RecipeError, match="2 entries, and 1 columns"):
        replace(
            recipe, batch=dualform.Recipe.of_dataset(
                TensorDataset(IMAGES, LABELS), 4, columns=["x"], model=recipe.model, optimizer=recipe.optimizer,
                losses=recipe.losses,
            ).batch,
        ).train(tmp_path / "other", 1)  # fmt: skip
    with pytest.raises(RecipeError, match="cannot be drawn from"):
        dualform.Recipe.of_dataset(data, 40, model=recipe.model, optimizer=recipe.optimizer, losses=recipe.losses)


def test_a_run_is_in_the_way(run: Path) -> None:
    recipe = recipe_of(options={"lr": 0.1, "momentum": 0.9})
    with nothing_left_behind(), pytest.raises(RunExists, match="already holds a run of 8 steps"):
        recipe.train(run, STEPS)
    with pytest.raises(RunExists, match="with seed 0, and the recipe has 1"):
        replace(recipe, seed=1).train(run, STEPS + 1)


def test_questions_without_the_recipe(run: Path) -> None:
    memory, queries = dualform.load(run), {"0": torch.ones(1, 6)}
    questions: list[Callable[[], Any]] = [
        lambda: memory.attend(queries)["0"].top(1), lambda: memory.attend(queries)["0"].total(),
        lambda: memory.without(label=1).weights("0"), lambda: memory.group_weights(by="label"), memory.verify,
    ]  # fmt: skip
    for question in questions:
        with pytest.raises(NotRecorded, match=r"dualform.load\(path, recipe=recipe\)"):
            question()
    with pytest.raises(NotRecorded, match=r"dualform.load\(path, recipe=recipe\)"):
        memory.retrain(without={"label": 1})
    assert memory.slots("0") == 6 * STEPS  # these need none
    assert memory.visits("0", by="label").to_dict()["visits"]


def test_maps_without_the_recipe(tmp_path: Path) -> None:
    recipe_of("conv").train(tmp_path, 2, keep="snapshots")
    memory = dualform.load(tmp_path)
    questions: list[Callable[[], Any]] = [
        lambda: memory.attend({"0": torch.ones(1, 18)})["0"].top(1), lambda: memory.without(label=1).weights("0"),
        memory.verify,
    ]  # fmt: skip
    for question in questions:
        with pytest.raises(NotRecorded, match=r"dualform.load\(path, recipe=recipe\)"):
            question()
    assert memory.slots("0") == 2 * 6 * 16


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"without": {"id": [999]}}, UnknownName, "no value of tag 'id': 999"),
        ({"without": {"colour": 1}}, UnknownName, "no tag 'colour'; choose from 'id', 'label'"),
        ({"without": {"step": 1}}, UnknownName, "no tag 'step'"),
        ({"without": {}}, QueryError, "by their tags"),
        ({"without": 3}, QueryError, "by their tags"),
        ({}, QueryError, "in one way"),
        ({"without": {"label": 1}, "where": {"label": 1}}, QueryError, "in one way"),
        ({"weights": {999: 0.5}}, UnknownName, "no value of tag 'id': 999"),
        ({"weights": {1: 2}}, QueryError, "between 0 and 1"),
        ({"weights": {1: float("nan")}}, QueryError, "between 0 and 1"),
        ({"weights": 3}, QueryError, "weights are those of examples"),
    ],
)
def test_what_cannot_be_left_out(run: Path, asked: dict[str, Any], error: type[DualformError], says: str) -> None:
    memory = dualform.load(run, recipe_of(options={"lr": 0.1, "momentum": 0.9}))
    with nothing_left_behind(), pytest.raises(error, match=says):
        memory.retrain(**asked)


def test_a_loop_cannot_be_run_again(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.record(model, optimizer, tmp_path) as recorder:
        recorder.tag(id=[0])
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
    with pytest.raises(NotRecorded, match="has no recipe, so it cannot be trained again"):
        dualform.load(tmp_path).retrain(without={"id": 0})
    with pytest.raises(RecipeError, match="was not trained by a recipe"):
        dualform.load(tmp_path, recipe_of())
    with pytest.raises(RunExists, match="not trained by a recipe"):
        recipe_of().train(tmp_path, STEPS)


@pytest.mark.parametrize("recipe", [{}, "mnist", nn.Linear(1, 1), dualform.Recipe])
def test_no_recipe(run: Path, recipe: Any) -> None:
    with pytest.raises(RecipeError, match=r"must be the dualform.Recipe"):
        dualform.load(run, recipe)


@pytest.mark.parametrize("size", [-1, "20 K", "1e9", True, None, "", "GB"])
def test_no_size_of_a_cache(run: Path, size: Any) -> None:
    with pytest.raises(QueryError, match="a size is a number of bytes"):
        dualform.load(run, recipe_of(), cache=size)

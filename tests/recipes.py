"""Random training runs: what to train, how each step goes, and the run recorded beside its dense reference."""

import copy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

import dualform
from dualform.recorder import evidence
from tests.dense import Dense, example_gradients
from tests.optimizers import ELEMENTWISE, MATRICES_ONLY, OPTIONS, make, options

CLASSES = 3


@dataclass(frozen=True)
class StepRecipe:
    """One step: its hyper-parameters, its micro-batches, and what is done to the gradient."""

    lr: float
    momentum: float  # or the first beta
    weight_decay: float
    dampening: float  # of SGD
    batches: tuple[int, ...]  # sizes of the accumulated micro-batches
    clip: float | None
    clip_each: bool  # after every micro-batch instead of once
    zeroed: bool  # a backward pass that is thrown away comes first
    frozen: str | None  # a parameter without gradient in this step


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    widths: tuple[int, ...]
    bias: bool
    optimizer: str
    options: dict[str, Any]
    warm_steps: int
    bias_lr_factor: float  # biases are in a group of their own
    steps: tuple[StepRecipe, ...]
    seed: int


@st.composite
def step_recipes(draw: st.DrawFn) -> StepRecipe:
    return StepRecipe(
        lr=draw(st.sampled_from([0.0, 0.01, 0.1])),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.01, 0.1])),
        dampening=draw(st.sampled_from([0.0, 0.3])),
        batches=tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))),
        clip=draw(st.sampled_from([None, 1e-3, 0.5, 1e6])),
        clip_each=draw(st.booleans()),
        zeroed=draw(st.booleans()),
        frozen=draw(st.sampled_from([None, None, "0.weight", "0.bias", "2.weight"])),
    )


@st.composite
def recipes(draw: st.DrawFn, optimizers: list[str] | None = None) -> Recipe:
    name, given = draw(options(optimizers or list(OPTIONS)))
    # Wide enough for the factors of all passes to be determined: a gradient has to have more numbers than that.
    hidden = draw(st.lists(st.integers(3, 6), min_size=1, max_size=2))
    return Recipe(
        widths=(draw(st.integers(2, 5)), *hidden, CLASSES),
        bias=draw(st.booleans()) and name not in MATRICES_ONLY,
        optimizer=name,
        options=given,
        warm_steps=draw(st.integers(0, 2)),
        bias_lr_factor=draw(st.sampled_from([1.0, 2.0])),
        steps=tuple(draw(st.lists(step_recipes(), min_size=1, max_size=5))),
        seed=draw(st.integers(0, 2**16)),
    )


@dataclass
class Trained:
    """A recorded run with everything there is to compare it with."""

    model: nn.Sequential
    reference: Dense
    labels: list[int] = field(default_factory=list)  # of each example, by its id
    states: list[dict[str, Tensor]] = field(default_factory=list)  # after 0, 1, ... steps
    references: list[Dense] = field(default_factory=list)


def mlp(widths: tuple[int, ...], bias: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for d_in, d_out in pairwise(widths):
        layers += [nn.Linear(d_in, d_out, bias=bias, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def train(recipe: Recipe, path: Path, **options: Any) -> Trained:
    """Train as the recipe says, recorded in float64."""
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)
    model = mlp(recipe.widths, recipe.bias)
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups = [{"params": weights}, *([{"params": biases}] if biases else [])]
    optimizer = make(recipe.optimizer, groups, 0.1, recipe.options)
    trained = Trained(model, Dense(model, recipe.optimizer))
    for _ in range(recipe.warm_steps):
        optimizer.zero_grad()
        _loss(model, *_batch(recipe, 3, generator)).backward()
        optimizer.step()
    trained.reference.start_warm(optimizer)
    trained.states.append(_copy(model))
    trained.references.append(copy.deepcopy(trained.reference))
    together = patch.object(evidence, "_FIRST_STEPS", 1)  # most steps wait to be audited, as in long runs
    with together, dualform.record(model, optimizer, path, dtype="float64", **options) as recorder:
        for step in recipe.steps:
            _take(recipe, step, trained, optimizer, recorder, generator)
            trained.states.append(_copy(model))
            trained.references.append(copy.deepcopy(trained.reference))
    return trained


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _batch(recipe: Recipe, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(size, recipe.widths[0], generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), targets)


def _take(
    recipe: Recipe,
    step: StepRecipe,
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    recorder: dualform.Recorder,
    generator: torch.Generator,
) -> None:
    model = trained.model
    for i, group in enumerate(optimizer.param_groups):
        group["lr"], group["weight_decay"] = step.lr * (recipe.bias_lr_factor if i else 1.0), step.weight_decay
        if group.get("momentum"):  # in RMSprop it may not be switched on later
            group["momentum"] = step.momentum
        if recipe.optimizer == "SGD":
            group["momentum"], group["dampening"] = step.momentum, step.dampening
        if "betas" in group:  # as OneCycleLR does
            group["betas"] = (step.momentum, group["betas"][1])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != step.frozen)
    optimizer.zero_grad()
    if step.zeroed:
        inputs, targets = _batch(recipe, 2, generator)
        recorder.tag(id=-1, label=targets)
        _loss(model, inputs, targets).backward()
        optimizer.zero_grad()
    twin = _twin(recipe, model)
    gradients: dict[str, dict[Any, Tensor]] = {}
    for i, size in enumerate(step.batches):
        inputs, targets = _batch(recipe, size, generator)
        ids = list(range(len(trained.labels), len(trained.labels) + size))
        trained.labels += targets.tolist()
        recorder.tag(id=ids, label=targets)
        _loss(model, inputs, targets).backward()
        _add(gradients, example_gradients(twin, inputs, targets, ids, 1.0))
        if step.clip is not None and (step.clip_each or i == len(step.batches) - 1):
            norm = nn.utils.clip_grad_norm_(model.parameters(), step.clip)
            _scale(gradients, min(1.0, step.clip / (float(norm) + 1e-6)))
    groups = {
        name: next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        for name, parameter in model.named_parameters()
    }
    trained.reference.step(gradients, {name: dict(group) for name, group in groups.items()})
    optimizer.step()
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _twin(recipe: Recipe, model: nn.Sequential) -> nn.Sequential:
    """The same network without a recorder's hooks."""
    twin = mlp(recipe.widths, recipe.bias)
    twin.load_state_dict(model.state_dict())
    for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return twin


def _add(total: dict[str, dict[Any, Tensor]], more: dict[str, dict[Any, Tensor]]) -> None:
    for name, by_tag in more.items():
        for tag, gradient in by_tag.items():
            before = total.setdefault(name, {}).get(tag, torch.zeros_like(gradient))
            total[name][tag] = before + gradient


def _scale(gradients: dict[str, dict[Any, Tensor]], factor: float) -> None:
    for by_tag in gradients.values():
        for tag in by_tag:
            by_tag[tag] = by_tag[tag] * factor


def recorded(recipe: Recipe) -> tuple[Trained, dualform.Memory]:
    """A training run and its memory, unless the optimiser magnified rounding beyond what a test can tell."""
    with TemporaryDirectory() as path:  # an open memory map outlives its file
        trained = train(recipe, Path(path) / "run")
        if recipe.optimizer in ELEMENTWISE:
            assume(trained.reference.condition > 1e-3)
        return trained, dualform.load(Path(path) / "run")

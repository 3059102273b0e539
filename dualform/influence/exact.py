"""Follow outputs back through a whole training, exactly: the derivative by the weight of each example in each step.

    exact(recipe, steps, outputs, around=1.0)           # scores (tests, visits), and the visits

In each step, the adjoint of its gradient goes through the losses forwards: the tangent of the losses *is* the influence
of the step's examples, and the tangent of the gradient is what the adjoint of the weights gains (a Hessian's product).
One call gives both, for all outputs at once. States are kept at every root of the number of steps, and those between
are made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, replace_all_batch_norm_modules_, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dualform.algebra import Rule
from dualform.errors import NotRecorded
from dualform.influence.adjoints import StateAdjoint, check_followed, clip_back, step_back
from dualform.nn.swap import fuse_recurrent
from dualform.random_state import RANDOM
from dualform.recipe.recipe import Recipe, StepBatch
from dualform.recipe.repeatable import repeatable
from dualform.recipe.training import Nobody, Training
from dualform.recorder.plan import registered_rule
from dualform.store.chapter import Witness

Progress = Callable[[int, int], None]
Outputs = Callable[[nn.Module], Tensor]  # of a trained model: (tests,)
_TOGETHER = 64  # tests, followed back at once


@dataclass(frozen=True)
class ExactScores:
    """The influence of each visit on each output, and how the training was."""

    scores: Tensor  # (tests, visits)
    steps: np.ndarray  # (visits,)
    columns: dict[str, np.ndarray]  # tags that each example has one of
    growth: float  # how many times larger the adjoint was at most than at the end of training


@dataclass(frozen=True)
class _Before:
    """A training just before a step."""

    weights: dict[str, Tensor]
    states: dict[str, dict[str, Any]]
    lines: dict[str, dict[str, float]]  # what the optimiser reads off its options; of parameters that it steps


def exact(
    recipe: Recipe, threads: int, steps: int, outputs: Outputs, around: float, progress: Progress = lambda a, b: None
) -> ExactScores:
    """Return the influence of all visits, linearised around a training in which all examples have this weight."""
    if recipe.carries:
        raise NotRecorded("a training that hands a state on from step to step is not followed back exactly")
    weighed = recipe if around == 1.0 else recipe.weighed(_times(recipe, around))
    with repeatable(threads), RANDOM, sdpa_kernel(SDPBackend.MATH), _explained():
        walk = _Walk(weighed, steps)
        followed = _Followed(weighed, walk.training, around)
        adjoints = followed.beginning(outputs)
        first, largest = _norm(adjoints), 0.0
        scores, visits = list[Tensor](), list[StepBatch]()
        for step, before in walk.back():
            batch = weighed.batch_of(step)
            adjoints, influence = followed.back(before, batch, adjoints)
            scores.append(influence)
            visits.append(batch)
            largest = max(largest, _norm(adjoints))
            progress(steps - step, steps)
    visits.reverse()
    columns = {name: [_column(batch.tags[name], len(batch)) for batch in visits] for name in visits[0].tags}
    return ExactScores(
        torch.cat(scores[::-1], dim=1),
        np.repeat(np.arange(steps), [len(batch) for batch in visits]),
        {name: np.concatenate(parts) for name, parts in columns.items() if all(part.ndim == 1 for part in parts)},
        largest / first if first else 0.0,
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Say what it means that torch cannot transform a function."""
    try:
        yield
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        raise NotRecorded(
            "the model computes with a torch.autograd.Function that cannot be differentiated twice, as recurrent "
            "modules of dualform with dropout between layers do: use method='fast'"
        ) from error


def _times(recipe: Recipe, around: float) -> Callable[[Mapping[str, Any]], Tensor]:
    own = recipe.weigh
    return lambda batch: torch.full((len(batch["id"]),), around) if own is None else around * own(batch)


def _norm(adjoints: Mapping[str, StateAdjoint]) -> float:
    squares = [adjoint.weight.double().square().sum() for adjoint in adjoints.values()]
    return float(torch.stack(squares).sum().sqrt())


def _column(value: Any, count: int) -> np.ndarray:
    """Return a tag of a batch as it is, or for each example: (batch,)."""
    column = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return np.full(count, column) if column.ndim == 0 else column


class _Walk(Nobody):
    """The states of a training before each step, the last one first."""

    def __init__(self, recipe: Recipe, steps: int) -> None:
        self.training, self._steps = Training(recipe), steps
        self._rules = [registered_rule(optimizer) for optimizer in self.training.optimizers]
        self._stride = max(1, ceil(sqrt(steps)))
        self._kept: list[tuple[int, Any]] = []
        self._states: list[_Before] = []  # since the last one that is kept
        for step in range(steps):
            if step % self._stride == 0:
                self._kept.append((step, self._copy()))
            self.training.take_step()

    def back(self) -> Iterator[tuple[int, _Before]]:
        """Yield each step with the state before it."""
        while self._kept:
            first, kept = self._kept.pop()
            self._put(kept)
            self.training.step = first
            for _ in range(first, min(first + self._stride, self._steps)):
                self.training.take_step(self)
            while self._states:
                yield first + len(self._states) - 1, self._states.pop()

    def _copy(self) -> Any:
        states = [{**optimizer.state_dict()} for optimizer in self.training.optimizers]
        return deepcopy((self.training.model.state_dict(), states))

    def _put(self, kept: Any) -> None:
        model, states = deepcopy(kept)
        self.training.model.load_state_dict(model)
        for optimizer, state in zip(self.training.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def before_step(self, witness: Witness) -> None:
        """Keep the state; parameters without a gradient, such as those of another head, are not stepped."""
        training = self.training
        names = {id(parameter): name for name, parameter in training.model.named_parameters()}
        weights = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
        states: dict[str, dict[str, Any]] = {}
        lines = {}
        for optimizer, rule in zip(training.optimizers, self._rules, strict=True):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name, state = names[id(parameter)], optimizer.state.get(parameter, {})
                    if parameter.grad is not None:
                        lines[name] = dict(zip(rule.columns, rule.read(group, state), strict=True))
                        states[name] = {e: v.detach().clone() if isinstance(v, Tensor) else v for e, v in state.items()}
        self._states.append(_Before(weights, states, lines))


class _Followed:
    """Takes adjoints back through one step."""

    def __init__(self, recipe: Recipe, training: Training, around: float) -> None:
        self._recipe, self._training, self._around = recipe, training, around
        self._frozen = {name for name, parameter in training.model.named_parameters() if not parameter.requires_grad}
        self._rules: dict[str, Rule] = {}
        names = {id(parameter): name for name, parameter in training.model.named_parameters()}
        for optimizer in training.optimizers:
            rule = registered_rule(optimizer)
            check_followed(type(optimizer).__name__, rule)
            self._rules |= {names[id(p)]: rule for group in optimizer.param_groups for p in group["params"]}
        model = fuse_recurrent(deepcopy(training.model)).train()
        replace_all_batch_norm_modules_(model)  # running means are in no loss
        self._losses = _Losses(model, recipe)

    def beginning(self, outputs: Outputs) -> dict[str, StateAdjoint]:
        """Return the gradients of the trained model's outputs."""
        model = fuse_recurrent(deepcopy(self._training.model)).eval()
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        buffers = dict(model.named_buffers())
        wrapped = _Outputs(model, outputs)

        def of(weights: dict[str, Tensor]) -> Tensor:
            inside = {f"model.{name}": tensor for name, tensor in {**buffers, **weights}.items()}
            result: Tensor = functional_call(wrapped, inside, ())
            return result

        gradients = jacrev(of, chunk_size=_TOGETHER)(weights)
        return {name: StateAdjoint.of(gradients[name]) for name in self._rules}

    def back(
        self, before: _Before, batch: StepBatch, after: dict[str, StateAdjoint]
    ) -> tuple[dict[str, StateAdjoint], Tensor]:
        """Return adjoints before a step, and the influence of its examples: (tests, batch)."""
        numbers = torch.get_rng_state()  # as they are when the batch is made
        weigh = self._recipe.weigh
        weights = torch.ones(len(batch)) if weigh is None else weigh(batch.content)
        free = {name: weight for name, weight in before.weights.items() if name not in self._frozen}

        def losses(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            of_examples = self._losses.of({**before.weights, **parameters}, batch)
            return (weights.to(of_examples) * of_examples).sum(), of_examples

        gradient = grad(losses, has_aux=True)
        stepped, of_gradients = self._step_back(before, gradient(free)[0], after)
        tests = len(next(iter(after.values())).weight)
        tangents = {
            name: of_gradients[name] if name in of_gradients else weight.new_zeros(tests, *weight.shape)
            for name, weight in free.items()
        }
        torch.set_rng_state(numbers)
        push = vmap(lambda tangent: jvp(gradient, (free,), (tangent,))[1], randomness="same", chunk_size=_TOGETHER)
        curved, influence = push(tangents)
        for name, adjoint in stepped.items():
            if name in curved:
                adjoint.weight = adjoint.weight + curved[name]
        return stepped, influence.detach() * (weights / self._around).to(influence)

    def _step_back(
        self, before: _Before, gradients: dict[str, Tensor], after: dict[str, StateAdjoint]
    ) -> tuple[dict[str, StateAdjoint], dict[str, Tensor]]:
        """Return adjoints before a step, but for its losses, and those of its gradients."""
        clipped, limit = gradients, self._recipe.clip
        if limit is not None:
            norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
            clipped = {name: g * (limit / (norm + 1e-6)).clamp(max=1.0) for name, g in gradients.items()}
        stepped = {
            name: step_back(
                self._rules[name], line, before.states[name], before.weights[name], clipped[name], after[name]
            )
            for name, line in before.lines.items()
        }
        of_gradients = {name: of_gradient for name, (_, of_gradient) in stepped.items()}
        if limit is not None and of_gradients:
            of_gradients = clip_back(gradients, limit, of_gradients)
        adjoints = {name: stepped[name][0] if name in stepped else replace(after[name]) for name in after}
        return adjoints, of_gradients


class _Losses(nn.Module):
    """The losses of a recipe as a function of parameters: each example's share of the step's loss, at weight 1."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.model, self._recipe = model, recipe

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        losses: Tensor = self._recipe.losses(self.model, batch)
        return losses

    def of(self, parameters: Mapping[str, Tensor], batch: StepBatch) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in parameters.items()}
        parts: Sequence[Tensor] = [
            functional_call(self, named, (part.content,)) for part in batch.parts(self._recipe.accumulate)
        ]
        losses = torch.cat([part.reshape(len(part), -1) for part in parts])
        return losses.sum(dim=1) / losses.numel()


class _Outputs(nn.Module):
    """Outputs of a model, as a function of its parameters."""

    def __init__(self, model: nn.Module, outputs: Outputs) -> None:
        super().__init__()
        self.model, self._outputs = model, outputs

    def forward(self) -> Tensor:
        return self._outputs(self.model)

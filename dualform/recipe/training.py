"""A recipe's training, at the step it has come to: `training.take_step()`, from the beginning or from a snapshot.

    training = Training(recipe)
    training.restore(run.snapshot(1000))
    training.take_step()                # step 1000, bit for bit

To be used within `repeatable()`.
"""

from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualform.dual.state import stored_tensor
from dualform.errors import DualformError, RecipeError, RunError
from dualform.kinds.names import named_buffers, named_parameters
from dualform.random_state import RANDOM
from dualform.recipe.carried import PREFIX, as_state, detached, from_tensors
from dualform.recipe.recipe import Recipe, StepBatch
from dualform.recipe.repeatable import seed_model
from dualform.recorder.arguments import as_optimizers, check_model
from dualform.recorder.snapshot import State, is_storable
from dualform.store import Shard
from dualform.store.chapter import Witness
from dualform.store.schema import STATE, STATE_BUFFERS, STATE_OPTIMIZERS, STATE_PARAMETERS


class Listener(Protocol):
    """Somebody who follows a training."""

    def before_pass(self, batch: StepBatch) -> None:
        """Called with a batch, or a part of one, just before it goes through the model."""

    def before_step(self, witness: Witness) -> None:
        """Called when the gradients of a step are there."""


class Nobody:
    """Listens to nothing."""

    def before_pass(self, batch: StepBatch) -> None: ...

    def before_step(self, witness: Witness) -> None: ...


class Training:
    """A model, its optimisers, and the step that comes next."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        with RANDOM:
            seed_model(recipe.seed)
            self.model = recipe.model()
        check_model(self.model)
        self.model.train()
        self.optimizers: list[Optimizer] = as_optimizers(recipe.optimizer(self.model))
        self._parameters = list(self.model.parameters())
        self._rates = [[group.get("lr") for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._carried: Any = None
        self._carried_on: Any = None  # by the step that is being taken
        self._has_buffers = any(True for _ in self.model.buffers())
        self._buffers: dict[str, Tensor] = {}  # copies of the model's, from before that step
        self._restored_from: str | None = None  # the snapshot from which no step was taken yet
        self.step = 0

    def carried(self) -> State:
        """Return what is handed on to the next step, as a snapshot has it."""
        return as_state(self._carried)

    def take_step(self, listener: Listener = Nobody()) -> Witness:  # noqa: B008
        """Take one step; return what tells whether it is the one that was taken before."""
        with RANDOM:
            return self._take_step(listener)

    def _take_step(self, listener: Listener) -> Witness:
        recipe, step = self.recipe, self.step
        if self._has_buffers:
            self._buffers = {name: buffer.clone() for name, buffer in named_buffers(self.model)}
        batch = recipe.batch_of(step)
        weights = None if recipe.weigh is None else _checked_weights(recipe.weigh(batch.content), batch)
        self._schedule()
        total, first = 0.0, 0
        for part in batch.parts(recipe.accumulate):
            listener.before_pass(part)
            own = None if weights is None else weights[first : first + len(part)]
            first += len(part)
            loss = self._loss(part, own, len(batch))
            loss.backward()
            total += float(loss.detach())
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        witness = Witness(total, batch.digest)
        listener.before_step(witness)
        for optimizer in self.optimizers:
            self._step(optimizer)
        self._restored_from = None
        self._finish_step()
        for parameter in self._parameters:
            parameter.grad = None
        return witness

    def _step(self, optimizer: Optimizer) -> None:
        try:
            optimizer.step()
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            if self._restored_from is None or isinstance(error, DualformError):
                raise
            raise RecipeError(
                f"{type(optimizer).__name__} cannot go on from the state in {self._restored_from}: {error}"
            ) from error

    def _finish_step(self) -> None:
        # no calls between these lines, nor anything else at which an interrupt may come
        self._carried = self._carried_on
        self._buffers = {}
        self.step += 1

    def settle(self, taken: int) -> None:
        """Leave no half of a step that an error has ended: what a forward pass alone has changed is as it was before.

        Args:
            taken: How many steps the optimisers have taken, all together.
        """
        before = self.step * len(self.optimizers)
        if taken == before:
            with torch.no_grad():
                for name, buffer in named_buffers(self.model) if self._buffers else ():
                    buffer.copy_(self._buffers[name])
        elif taken == before + len(self.optimizers):
            self._finish_step()

    def _loss(self, batch: StepBatch, weights: Tensor | None, examples: int) -> Tensor:
        """Return the share of a part of the batch in the step's loss: sum(w l) / n."""
        recipe = self.recipe
        device = next((p.device.type for p in self.model.parameters()), "cpu")
        with torch.autocast(device, recipe.autocast) if recipe.autocast is not None else nullcontext():
            if recipe.carries:
                returned = recipe.losses(self.model, batch.content, self._carried)
                losses, self._carried_on = _with_state(returned)
            else:
                losses = recipe.losses(self.model, batch.content)
        _check_losses(losses, batch)
        n = losses[0].numel() * examples
        if weights is not None:
            losses = losses * weights.to(losses).reshape(-1, *[1] * (losses.dim() - 1))
        return losses.sum() / n

    def _schedule(self) -> None:
        if self.recipe.schedule is None:
            return
        factor = self.recipe.schedule(self.step)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                if rate is None:
                    raise RecipeError(f"{type(optimizer).__name__} has no learning rate for a schedule to multiply")
                group["lr"] = rate * factor

    # From and to snapshots

    def restore(self, snapshot: Shard) -> None:
        """Go to the step after which a snapshot was taken."""
        with torch.no_grad():
            for prefix, tensors in (STATE_PARAMETERS, named_parameters), (STATE_BUFFERS, named_buffers):
                for name, tensor in tensors(self.model):
                    if is_storable(tensor):
                        stored = _held(snapshot, f"{prefix}{name}")
                        if stored.shape != tensor.shape:
                            raise RecipeError(
                                f"the recipe's {name!r} has shape {tuple(tensor.shape)}, that of the run "
                                f"{tuple(stored.shape)}: it is not the recipe that the run was trained with"
                            )
                        tensor.copy_(stored)
        for number, optimizer in enumerate(self.optimizers):
            self._restore_optimizer(snapshot, number, optimizer)
        carried, prefix = snapshot.names(f"{STATE}{PREFIX}"), f"{STATE}{PREFIX}"
        self._carried = from_tensors(
            {name.removeprefix(prefix).removeprefix("/"): stored_tensor(snapshot, name) for name in carried}
        )
        self.step, self._restored_from = snapshot.info.last_step // len(self.optimizers), snapshot.path

    def _restore_optimizer(self, snapshot: Shard, number: int, optimizer: Optimizer) -> None:
        optimizer.state.clear()
        names = {id(parameter): name for name, parameter in named_parameters(self.model)}
        stored = snapshot.names(f"{STATE_OPTIMIZERS}{number}/")
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if id(p) in names):
            prefix = f"{STATE_OPTIMIZERS}{number}/{names[id(parameter)]}/"
            for name in (name for name in stored if name.startswith(prefix) and "/" not in name[len(prefix) :]):
                tensor = stored_tensor(snapshot, name)
                # torch counts steps in tensors of floats; who counts in whole numbers does so in Python's
                whole = tensor.dim() == 0 and not tensor.is_floating_point()
                value = int(tensor) if whole else tensor.to(parameter.device) if tensor.dim() else tensor
                optimizer.state[parameter][name[len(prefix) :]] = value


def _held(snapshot: Shard, name: str) -> Tensor:
    try:
        return stored_tensor(snapshot, name)
    except RunError:
        raise RecipeError(
            f"the recipe's model has {name.split('/', 2)[2]!r}, which the run does not know: it is not the recipe that "
            "the run was trained with"
        ) from None


def _with_state(returned: Any) -> tuple[Tensor, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise RecipeError("losses(model, batch, state) must return the losses and the new state, two things")
    return returned[0], detached(returned[1])


def _check_losses(losses: Any, batch: StepBatch) -> None:
    if not isinstance(losses, Tensor):
        state = ", unless it takes a third argument, without a default: the state" if isinstance(losses, tuple) else ""
        raise RecipeError(f"losses must return a tensor, (batch, ...), not {type(losses).__name__}{state}")
    if losses.dim() == 0 or len(losses) != len(batch):
        mean = ', not their mean: reduction="none"' if losses.dim() == 0 else ""
        raise RecipeError(
            f"losses must return a loss for each of the {len(batch)} examples, or each of their tokens{mean}; got "
            f"shape {tuple(losses.shape)}"
        )
    if not losses.requires_grad:
        raise RecipeError("losses do not depend on any trainable parameter, so that nothing can be learned of them")


def _checked_weights(weights: Any, batch: StepBatch) -> Tensor:
    if not isinstance(weights, Tensor) or tuple(weights.shape) != (len(batch),):
        shape = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise RecipeError(f"weigh must return a tensor with a weight for each of {len(batch)} examples, not {shape}")
    return weights

"""A layer's steps once more, latest first, for optimisers that divide elementwise.

    for move in Replay(run, layer).latest_first(until):
        worth = adjoint[use].back(move.parts[use].step())      # the coefficient R_t, shaped like the parameter

Their Steps need moments that nobody recorded, so these are made again from keys and values: a step's
gradient is the sum over its backward passes of f_p E_p^T X_p, with the same rows, in the same order and by
the same product as in training, and the moments that each chapter begins with are in the snapshot before it.

Moments go forwards, the adjoint backwards. So a chapter is cut into segments and run through once to learn
the moments at the start of each; then, from the last segment to the first, a second time, with all of the
segment kept. That takes two products a step, and memory that grows with the root of a chapter's steps.

Elementwise also means that the units of a layer do not know of each other: `units` replays only some.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import Line, Moments, Rule, Step
from dualform.errors import RunError
from dualform.query.coefficients import rule_of
from dualform.query.scan import Block, Slots
from dualform.query.state import optimizer_entry, parameter
from dualform.store import Layer, Run, Shard, Use
from dualform.store.schema import ledger_tensor

_KEPT_BYTES = 1 << 28  # of a chapter whose moments and gradients all fit into this, nothing is made twice


@dataclass(frozen=True)
class Moved:
    """What one step did to one parameter."""

    gradient: Tensor  # G, as the optimiser got it
    line: Line
    moments: Moments  # after the step
    rule: Rule

    def step(self) -> Step:
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            step = self.rule.step(self.line, self.moments)
        numbers = {name: float(number) for name, number in vars(step).items() if isinstance(number, float)}
        # torch multiplies weights by a number of their own precision; one that is close to 1 loses most by that
        return replace(step, **numbers | {"keep": float(torch.tensor(step.keep, dtype=self.gradient.dtype))})


@dataclass(frozen=True)
class Move:
    """One step of a layer: the parameters that moved, and the slots that moved them, a row range for each pass."""

    number: int
    shard: Shard
    parts: Mapping[Use, Moved]
    passes: Sequence[slice]


@dataclass(frozen=True)
class _State:
    """A parameter between two steps. Weight and momentum matter only where decay goes through the gradient."""

    moments: Moments
    weight: Tensor
    momentum: Tensor | float


class Replay:
    """The steps of a layer whose optimiser divides elementwise; of all its units, or of some.

    `slots` are the layer's, in the precision it was trained in, or float32 if that was lower.
    """

    def __init__(self, run: Run, layer: Layer, units: Tensor | None = None) -> None:
        self._run, self._units = run, units
        trained = parameter(run.shards[0], layer, layer.trained[0])
        self.slots = Slots(run, layer, torch.promote_types(trained.dtype, torch.float32))

    def latest_first(self, until: int, since: int = 0) -> Iterator[Move]:
        """Steps [since, until) from the last to the first; `since` has to be the start of a chapter."""
        for before, shard in reversed(list(self._run.chapters())):
            if since <= shard.info.first_step < until:
                chapter = _Chapter(self._run, self.slots, self._units, before, shard)
                yield from chapter.latest_first(min(until, shard.info.last_step))


class _Chapter:
    """The steps of one shard, from the snapshot before it."""

    def __init__(self, run: Run, slots: Slots, units: Tensor | None, before: Shard, shard: Shard) -> None:
        self._slots, self._units, self._before, self._shard = slots, units, before, shard
        self._rule = rule_of(run, slots.layer)
        self._lines = {use: self._read(use) for use in slots.layer.trained}
        self._coupled = {use: any(line and self._rule.decay(line) for line in self._lines[use]) for use in self._lines}
        self._passes = slots.pass_rows(shard)

    def _read(self, use: Use) -> list[Line | None]:
        """A parameter's ledger line of each step; None: torch did not step it."""
        name = ledger_tensor(use.parameter.name)
        lines = self._shard[name]  # numpy's numbers, of which all powers and quotients exist
        if (np.isfinite(lines) & (np.abs(lines) > torch.finfo(self._slots.dtype).max)).any():
            raise RunError(
                f"{self._shard.path} is not a sound shard: {name} has numbers that are too large for weights in "
                f"{self._slots.dtype}"
            )
        return [dict(zip(self._rule.columns, line, strict=True)) if stepped else None for stepped, *line in lines]

    def latest_first(self, until: int) -> Iterator[Move]:
        steps = range(self._shard.info.first_step, until)
        starts = [{use: self._first(use) for use in self._slots.layer.trained}]
        size = self._segment(len(steps), starts[0])
        segments = [steps[i : i + size] for i in range(0, len(steps), size)]
        for segment in segments[:-1]:
            state = starts[-1]
            for number in segment:
                state, _ = self._take(state, number)
            starts.append(state)
        while segments:
            state, moves = starts.pop(), []
            for number in segments.pop():
                state, move = self._take(state, number)
                moves.append(move)
            while moves:
                yield moves.pop()

    def _segment(self, steps: int, state: Mapping[Use, _State]) -> int:
        """How many steps are kept at a time."""
        numbers = sum(one.weight.numel() * (1 + len(one.moments or self._rule.moments)) for one in state.values())
        return min(steps, max(ceil(sqrt(steps)), _KEPT_BYTES // (numbers * self._slots.dtype.itemsize)))

    def _first(self, use: Use) -> _State:
        """A parameter as the snapshot before the chapter has it."""
        layer = self._slots.layer
        entries = {entry: optimizer_entry(self._before, layer, use, entry) for entry in self._rule.moments}
        momentum = optimizer_entry(self._before, layer, use, self._rule.momentum)
        return _State(
            {entry: self._mine(found) for entry, found in entries.items() if found is not None},
            self._mine(parameter(self._before, layer, use)),
            0.0 if momentum is None else self._mine(momentum),
        )

    def _mine(self, stored: Tensor) -> Tensor:
        """The chosen units, in the precision of the replay."""
        return (stored if self._units is None else stored[self._units]).to(self._slots.dtype)

    def _chosen(self, values: Tensor) -> Tensor:
        """(slots, units)"""
        return values if self._units is None else values[:, self._units]

    def _take(self, state: Mapping[Use, _State], number: int) -> tuple[dict[Use, _State], Move]:
        """One step forwards. A parameter that torch did not step stays what it is."""
        passes = self._passes.get(number, [])
        blocks = [self._slots.block(self._shard, rows) for rows in passes]
        after, moved = dict(state), {}
        for use, lines in self._lines.items():
            line = lines[number - self._shard.info.first_step]
            if line is not None:
                moved[use], after[use] = self._move(use, state[use], line, blocks)
        return after, Move(number, self._shard, moved, passes)

    def _move(self, use: Use, before: _State, line: Line, blocks: Sequence[Block]) -> tuple[Moved, _State]:
        gradient, decay = self._gradient(blocks, use, before.weight), self._rule.decay(line)
        signed = gradient if self._rule.sign(line) > 0 else -gradient
        g = signed.add(before.weight, alpha=decay) if decay else signed
        moved = Moved(gradient, line, self._advance(line, g, before.moments), self._rule)
        if not self._coupled[use]:
            return moved, _State(moved.moments, before.weight, before.momentum)
        return moved, _State(moved.moments, *moved.step().forwards(before.weight, before.momentum, g))

    def _advance(self, line: Line, g: Tensor, moments: Moments) -> Moments:
        try:
            with np.errstate(all="ignore"):
                return self._rule.advance(line, g, moments)
        except KeyError as entry:  # one that the optimiser has from the beginning
            raise RunError(f"{self._before.path} is not a sound shard: the optimiser's {entry} is missing") from None

    def _gradient(self, blocks: Sequence[Block], use: Use, like: Tensor) -> Tensor:
        """Passes of one factor are summed before it is applied, as clipping does."""
        factors = [float(block.factors(use)[0]) for block in blocks]
        products = (block.product(use, self._chosen(block.values)) for block in blocks)
        if len(set(factors)) == 1:
            total = sum(products, start=next(products))
            return total if factors[0] == 1.0 else total * factors[0]
        return sum((f * product for f, product in zip(factors, products, strict=True)), start=torch.zeros_like(like))

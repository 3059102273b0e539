"""Replay a layer's steps, latest first, for optimisers that divide elementwise.

    for replayed in replay.stream(replay.chapters(selection), selection):
        adjoint[parameter].back(replayed.updates[parameter].step())     # the coefficient R_t, shaped like the parameter

Their Steps need moments that were not recorded, so these are made again from keys and values: a step's
gradient is the sum over its backward passes of f_p E_p^T X_p, with the same rows, in the same order and by
the same product as in training, rounded to half precision where autocast did so, and the moments that each
chapter begins with are in the snapshot before it.

Moments go forwards, the adjoint backwards. So a chapter is cut into segments and run through once to learn
the moments at the start of each; then, from the last segment to the first, a second time, with all of the
segment kept. That takes two products a step, and memory that grows with the root of a chapter's steps.

Elementwise also means that the output units of a layer do not depend on each other: `units` replays only some, unless
the rule says that what it divides by is made of all of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod, sqrt
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import Line, Moments, Rule, Step
from dualform.dual.rebuilt import over_all_uses
from dualform.dual.rounding import pass_gradients
from dualform.dual.state import optimizer_entry, stored_parameter, stored_rows
from dualform.errors import RunError
from dualform.kinds import kind_of
from dualform.kinds.half_precision import rounding_ratios
from dualform.slots import NO_ROWS, Block, PassRows, Selection, Slots
from dualform.store import Layer, Parameter, Run, Shard, Use
from dualform.store.schema import ledger_tensor, remainder_tensor

_SHORT_SUM = 64  # matrices
_TOGETHER = 1024  # steps of one slot whose gradients are made at once,
_TOGETHER_BYTES = 1 << 24  # if they take no more than this
_KEPT_BYTES = 1 << 28  # of a chapter whose moments and gradients all fit into this, nothing is made twice


@dataclass(frozen=True)
class Update:
    """What one step did to one parameter."""

    gradient: Tensor  # G, as the optimiser got it
    line: Line
    moments: Moments  # after the step
    rule: Rule
    remainder: Tensor | None = None  # of the step, where the rule has one

    def step(self) -> Step:
        with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
            step = self.rule.step(self.line, self.moments)
        numbers = {name: float(number) for name, number in vars(step).items() if isinstance(number, float)}
        if step.keep != 1.0:
            # torch multiplies weights by a number of their own precision; one that is close to 1 loses most by that
            numbers["keep"] = float(torch.tensor(step.keep, dtype=self.gradient.dtype))
        return replace(step, **numbers)


@dataclass(frozen=True)
class ReplayedStep:
    """One step: what it did to parameters, and the slots it did it with, by layer and backward pass."""

    number: int
    before: Shard  # of its chapter
    shard: Shard
    updates: Mapping[Parameter, Update]
    passes: Mapping[str, Sequence[PassRows]]


@dataclass(frozen=True)
class _State:
    """A parameter between two steps. Weight and momentum matter only where moments depend on them, as by decay."""

    moments: Moments
    weight: Tensor
    momentum: Tensor | float


class Replay:
    """The steps of a layer's parameters, and so of all layers that use them; of all its units, or of some.

    `slots` are those layers', in the precision they were trained in, or float32 if that was lower.
    """

    splits = False  # coefficients go from the last step to the first

    def __init__(self, run: Run, layers: Sequence[Layer], rule: Rule, units: Tensor | None = None) -> None:
        self.run, self.layers, self.rule, self.units = run, layers, rule, units
        self.parameters = [use.parameter for use in layers[0].trained]
        trained = stored_parameter(run.shards[0], self.parameters[0])
        self.dtype = torch.promote_types(trained.dtype, torch.float32)
        self.slots = {layer.name: Slots(run, layer, self.dtype) for layer in layers}
        self._chapters = list(run.chapters)

    def chapters(self, selection: Selection, since: int = 0) -> list[int]:
        """Return those with steps [since, until), from the last to the first; `since` has to start a chapter."""
        starts = [shard.info.first_step for _, shard in self._chapters]
        return [number for number in reversed(range(len(starts))) if since <= starts[number] < selection.until]

    def first_step(self, chapter: int) -> int:
        """Return the first step of a chapter."""
        return self._chapters[chapter][1].info.first_step

    def stream(self, chapters: Iterable[int], selection: Selection, since: int = 0) -> Iterator[ReplayedStep]:
        for number in chapters:
            before, shard = self._chapters[number]
            chapter = _Chapter(self, before, shard)
            yield from chapter.latest_first(min(selection.until, shard.info.last_step))

    def blocks(self, step: ReplayedStep, layer: Layer, selection: Selection | None = None) -> list[Block]:
        """Return the slots of a layer in a step, or the chosen ones among them, a block for each pass that has any."""
        slots, passes = self.slots[layer.name], step.passes[layer.name]
        if selection is None:
            return [slots.block(rows) for rows in passes]
        return slots.chosen_blocks(passes, selection)

    def chooses_all(self, step: ReplayedStep, selection: Selection) -> bool:
        """Return whether a selection has every slot of a step, whose gradients need not be made once more then."""
        return not selection.conditions or all(
            self.slots[layer].chooses_all(passes, selection) for layer, passes in step.passes.items()
        )

    def rounding(self, step: ReplayedStep, layer: Layer, use: Use) -> "Rounding":
        """Return what rounding to half precision made of what slots of a layer added to a parameter in a step."""
        blocks = self.blocks(step, layer)
        if not any(block.rounded for block in blocks):  # as in most trainings
            return Rounding({})
        products = [block.product(use, self.values(block)) for block in blocks]
        ratios = rounding_ratios(products, [block.precision for block in blocks])
        return Rounding({block.pass_number: ratio for block, ratio in zip(blocks, ratios, strict=True)})

    def values(self, block: Block) -> Tensor:
        """Return the values of a block: (slots, units)."""
        return block.values if self.units is None else block.values[:, self.units]

    def of_units(self, parameter: Tensor, use: Use) -> Tensor:
        """Return what is replayed of a parameter, or of something of its shape: itself, or the map of chosen units."""
        return parameter if self.units is None else kind_of(self.layers[0]).as_map(use, parameter)[self.units]

    def of_maps(self, layer: Layer, use: Use, maps: Tensor) -> Tensor:
        """Return maps (..., units, width) as they are replayed: shaped like the parameter, unless units are chosen."""
        return kind_of(layer).from_map(use, maps) if self.units is None else maps


class _Chapter:
    """The steps of one shard, from the snapshot before it."""

    def __init__(self, replay: Replay, before: Shard, shard: Shard) -> None:
        self._replay, self._before, self._shard = replay, before, shard
        self._rule = replay.rule
        self._lines = {parameter: self._read(parameter) for parameter in replay.parameters}
        self._with_weights = {
            parameter: replay.rule.reads_weight or any(line and replay.rule.decay(line) for line in lines)
            for parameter, lines in self._lines.items()
        }
        self._passes = {name: slots.passes_of_all(shard) for name, slots in replay.slots.items()}
        self._remainders = {parameter: self._read_remainders(parameter) for parameter in replay.parameters}

    def _read(self, parameter: Parameter) -> list[Line | None]:
        """Return a parameter's ledger line of each step; None: torch did not step it."""
        name, dtype = ledger_tensor(parameter.name), self._replay.dtype
        lines = self._shard[name]  # numpy's numbers, of which all powers and quotients exist
        if (np.isfinite(lines) & (np.abs(lines) > torch.finfo(dtype).max)).any():
            raise RunError(
                f"{self._shard.path} is a corrupt shard: {name} has numbers that are too large for weights in {dtype}"
            )
        return [dict(zip(self._rule.columns, line, strict=True)) if stepped else None for stepped, *line in lines]

    def _read_remainders(self, parameter: Parameter) -> dict[int, Tensor]:
        """Return the remainder of each step that has one, by its number."""
        first, name = self._shard.info.first_step, remainder_tensor(parameter.name)
        numbers = [first + i for i, line in enumerate(self._lines[parameter]) if line is not None]
        if self._rule.remainder is None or not numbers:
            return {}
        rows = stored_rows(self._shard, name) if name in self._shard else ()
        if len(rows) != len(numbers):
            raise RunError(f"{self._shard.path} is a corrupt shard: {name} has {len(rows)} rows, not {len(numbers)}")
        return dict(zip(numbers, rows, strict=True))

    def latest_first(self, until: int) -> Iterator[ReplayedStep]:
        steps = range(self._shard.info.first_step, until)
        starts = [{use.parameter: self._first(use) for use in self._replay.layers[0].trained}]
        numbers = sum(
            state.weight.numel() * (1 + len(state.moments or self._rule.moments)) for state in starts[0].values()
        )  # of a step
        kept = _KEPT_BYTES // (numbers * self._replay.dtype.itemsize)
        size = min(len(steps), max(ceil(sqrt(len(steps))), kept))
        segments = [steps[i : i + size] for i in range(0, len(steps), size)]
        for segment in segments[:-1]:
            state = starts[-1]
            for number, gradients in self._with_gradients(segment):
                state, _ = self._take(state, number, gradients)
            starts.append(state)
        while segments:
            state, replayed = starts.pop(), []
            for number, gradients in self._with_gradients(segments.pop()):
                state, step = self._take(state, number, gradients)
                replayed.append(step)
            while replayed:
                yield replayed.pop()

    def _first(self, use: Use) -> _State:
        """Return a parameter as the snapshot before the chapter has it."""

        def chosen(stored: Tensor) -> Tensor:
            return self._replay.of_units(stored, use).to(self._replay.dtype)

        entries = {
            entry: optimizer_entry(self._before, use.parameter, entry, self._rule.joint) for entry in self._rule.moments
        }
        momentum = optimizer_entry(self._before, use.parameter, self._rule.momentum)
        return _State(
            {entry: chosen(stored) for entry, stored in entries.items() if stored is not None},
            chosen(stored_parameter(self._before, use.parameter)),
            0.0 if momentum is None else chosen(momentum),
        )

    def _with_gradients(self, steps: range) -> Iterator[tuple[int, Mapping[Parameter, Tensor]]]:
        """Yield steps with their gradients; of steps that have one slot each, many are made at once."""
        nbytes = max(prod(parameter.shape) for parameter in self._lines) * self._replay.dtype.itemsize
        size = max(1, min(_TOGETHER, _TOGETHER_BYTES // nbytes))
        for some in (steps[start : start + size] for start in range(0, len(steps), size)):
            made = self._gradients_of_slots(some)
            if made is None:
                yield from ((number, self._gradients(number)) for number in some)
            else:
                for number, *gradients in zip(some, *made.values(), strict=True):
                    yield number, dict(zip(made, gradients, strict=True))

    def _gradients_of_slots(self, steps: range) -> Mapping[Parameter, Sequence[Tensor]] | None:
        """Return the gradients of steps with one slot each: of each parameter, one a step. None: some have others."""
        (layer, *others), replay = self._replay.layers, self._replay
        passes = [rows for number in steps for rows in self._passes[layer.name].get(number, [NO_ROWS])]
        single = len(passes) == len(steps) and all(rows.stop - rows.start == 1 for _, rows in passes)
        stepped = all(line is not None for number in steps for line in self._lines_of(number).values())
        if others or not (single and stepped) or len({shard for shard, _ in passes}) > 1:
            return None
        whole = PassRows(passes[0].shard, slice(passes[0].rows.start, passes[-1].rows.stop))
        block, gradients = replay.slots[layer.name].block(whole), {}
        if block.rounded:
            return None
        for use in layer.trained:
            factors = torch.from_numpy(block.factors(use)).to(replay.dtype)[:, None, None]
            products = block.keys.of(use).outers(replay.values(block)) * factors  # (steps, units, width)
            gradients[use.parameter] = replay.of_maps(layer, use, products).unbind()
        return gradients

    def _gradients(self, number: int) -> Mapping[Parameter, Tensor]:
        """Return the gradient of each parameter that torch stepped, as far as slots were in it."""
        lines, step = self._lines_of(number), self._replayed(number)
        blocks = {layer.name: self._replay.blocks(step, layer) for layer in self._replay.layers}

        def gradients_of(layer: Layer) -> dict[Use, Tensor]:
            stepped = [use for use in layer.trained if lines.get(use.parameter) is not None]
            return {use: self._gradient(use, blocks[layer.name]) for use in stepped if blocks[layer.name]}

        if self._replay.units is not None:  # those of one layer, which has its parameters for itself
            return {use.parameter: gradient for use, gradient in gradients_of(self._replay.layers[0]).items()}
        return over_all_uses(self._replay.layers, self._lines, gradients_of)

    def _lines_of(self, number: int) -> dict[Parameter, Line | None]:
        first = self._shard.info.first_step
        return {parameter: lines[number - first] for parameter, lines in self._lines.items()}

    def _replayed(self, number: int, updates: Mapping[Parameter, Update] = MappingProxyType({})) -> ReplayedStep:
        passes = {layer: rows.get(number, []) for layer, rows in self._passes.items()}
        return ReplayedStep(number, self._before, self._shard, updates, passes)

    def _take(
        self, state: Mapping[Parameter, _State], number: int, gradients: Mapping[Parameter, Tensor]
    ) -> tuple[dict[Parameter, _State], ReplayedStep]:
        """Take one step forwards. A parameter that torch did not step stays what it is."""
        after, updates = dict(state), {}
        for parameter, line in self._lines_of(number).items():
            if line is not None:
                gradient = gradients.get(parameter)
                known = torch.zeros_like(state[parameter].weight) if gradient is None else gradient
                update, after[parameter] = self._update(parameter, known, state[parameter], line)
                remainder = self._remainders[parameter].get(number)
                updates[parameter] = replace(update, remainder=None if remainder is None else remainder.to(known.dtype))
        return after, self._replayed(number, updates)

    def _update(self, parameter: Parameter, gradient: Tensor, before: _State, line: Line) -> tuple[Update, _State]:
        decay = self._rule.decay(line)
        signed = gradient if self._rule.sign(line) > 0 else -gradient
        g = signed.add(before.weight, alpha=decay) if decay else signed
        try:
            with np.errstate(all="ignore"):
                moments = self._rule.moments_after(line, g, before.moments, before.weight)
        except KeyError as entry:  # one that the optimiser has from the beginning
            raise RunError(f"{self._before.path} is a corrupt shard: the optimiser's {entry} is missing") from None
        update = Update(gradient, line, moments, self._rule)
        if not self._with_weights[parameter]:
            return update, _State(moments, before.weight, before.momentum)
        return update, _State(moments, *update.step().forwards(before.weight, before.momentum, g))

    def _gradient(self, use: Use, blocks: Sequence[Block]) -> Tensor:
        """Return the gradient of one step (units, width); passes of one factor are summed first, as clipping does."""
        passes = pass_gradients(use, blocks, self._replay.values)
        factors = {float(block.factors(use)[0]) for block in blocks}
        if len(factors) == 1:
            gradients = (rounded for _, _, rounded in passes)
            total, factor = sum(gradients, start=next(gradients)), factors.pop()
            return total if factor == 1.0 else total * factor
        weighted = (factor * rounded for factor, _, rounded in passes)
        return sum(weighted, start=next(weighted))


@dataclass(frozen=True)
class Rounding:
    """What became of the products of each pass of a step: entrywise factors, close to 1. Of no pass: nothing."""

    _ratios: Mapping[int, Tensor]  # by the number of the pass

    def __bool__(self) -> bool:
        return bool(self._ratios)

    def of(self, block: Block, matrix: Tensor) -> Tensor:
        """Return a map (units, width) of slots in one pass, as rounding left it."""
        ratio = self._ratios.get(block.pass_number)
        return matrix if ratio is None else matrix * ratio


class LongSum:
    """A sum of many matrices, of which only every 64 go on in float64: to convert each takes long."""

    def __init__(self) -> None:
        self._long: Tensor | float = 0.0
        self._short: Tensor | None = None
        self._count = 0

    def add(self, matrix: Tensor) -> None:
        """Take a matrix, which is from now on the sum's own."""
        self._short = matrix if self._short is None else self._short.add_(matrix)
        self._count += 1
        if self._count == _SHORT_SUM:
            self._long, self._short, self._count = self.total, None, 0

    @property
    def total(self) -> Tensor | float:
        return self._long if self._short is None else self._long + self._short.double()

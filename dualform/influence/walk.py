"""Walk back through a training, step by step and all layers together: their slots, and what the optimiser did.

    for steps, layers in walk_back(view, names):        # several steps where several optimisers step in turn
        layers["fc"].blocks         # its slots in these steps
        layers["fc"].step           # keep, carry, intake, ...: numbers
        layers["fc"].by_row, .by_key    # where the optimiser divides elementwise: what it multiplies by, nearly

Adam's kin multiply each entry of a gradient by a number of its own. What follows is of rank one as long as these
numbers are, so they are taken for a product of one factor a row and one a column: means, as Adafactor has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import Rule, Step
from dualform.dual.coefficients import rule_of
from dualform.dual.rebuilt import sharing
from dualform.dual.replay import Replay
from dualform.errors import QueryError
from dualform.kinds import kind_of
from dualform.slots import Block, Selection, View
from dualform.store import Layer
from dualform.store.schema import ledger_tensor

_TINY = 1e-100
_MATRICES = ("alpha", "beta", "intake")  # of a Step, where an optimiser divides elementwise


@dataclass(frozen=True)
class LayerStep:
    """A layer in one step."""

    layer: Layer
    blocks: Sequence[Block]
    step: Step | None  # numbers; None: its weight was not stepped
    by_row: Tensor | None = None  # (d_out,): what the step multiplies the gradient by is by_row x by_key, nearly,
    by_key: Tensor | None = None  # (width of all trained uses,): and its numbers are what that is multiplied by


def walk_back(view: View, names: Sequence[str]) -> Iterator[tuple[range, Mapping[str, LayerStep]]]:
    """Yield all rounds of a view, the last one first: the steps in which each optimiser steps once."""
    walks = {name: _walk(view, view.run.layers[name]) for name in names}
    for steps in reversed(_rounds(view)):
        taken = {name: [next(walk) for _ in steps] for name, walk in walks.items()}
        yield steps, {name: next((one for one in own if one.step or one.blocks), own[0]) for name, own in taken.items()}


def _rounds(view: View) -> list[range]:
    """Return the steps of each round: one, unless there are several optimisers."""
    run, until = view.run, view.selection.until
    stepped = np.zeros((until, len(run.manifest.optimizers)), dtype=bool)
    for parameter in run.parameters:
        if parameter.optimizer is not None:
            stepped[:, parameter.optimizer] |= run.ledger(parameter.name)[:until, 0] > 0
    rounds, first = list[range](), 0
    for step in range(1, until):
        if (stepped[first:step].any(axis=0) & stepped[step]).any() or stepped.shape[1] == 1:
            rounds.append(range(first, step))
            first = step
    return [*rounds, range(first, until)]


def _walk(view: View, layer: Layer) -> Iterator[LayerStep]:
    rule = rule_of(view.run, layer)
    if rule.matrices:
        raise QueryError(f"layer {layer.name!r} was trained by Muon, whose steps are not followed back")
    return _replayed(view, layer, rule) if rule.moments else _linear(view, layer, rule)


def _linear(view: View, layer: Layer, rule: Rule) -> Iterator[LayerStep]:
    slots, until = view.slots(layer.name), view.selection.until
    name = ledger_tensor(layer.trained[0].parameter.name)
    for _, chapter in reversed(view.run.chapters):
        passes, first = slots.passes_of_all(chapter), chapter.info.first_step
        for number in reversed(range(first, min(chapter.info.last_step, until))):
            stepped, *line = chapter[name][number - first].tolist()
            step = rule.step(dict(zip(rule.columns, line, strict=True)), {}) if stepped else None
            blocks = [slots.block(rows) for rows in passes.get(number, [])]
            yield LayerStep(layer, blocks, None if step is None else _numbers(step))


def _replayed(view: View, layer: Layer, rule: Rule) -> Iterator[LayerStep]:
    replay = Replay(view.run, sharing(view.run.manifest, layer), rule)
    selection, kind = Selection(view.selection.until), kind_of(layer)
    for replayed in replay.stream(replay.chapters(selection), selection):
        blocks = replay.blocks(replayed, layer)
        updates = {use: replayed.updates.get(use.parameter) for use in layer.trained}
        steps = {use: update.step() for use, update in updates.items() if update is not None}
        if len(steps) < len(updates):
            yield LayerStep(layer, blocks, None)
            continue
        maps = {
            name: torch.cat([kind.as_map(use, getattr(step, name)) for use, step in steps.items()], dim=1).double()
            for name in _MATRICES
            if isinstance(getattr(steps[layer.trained[0]], name), Tensor)
        }
        numbers = _numbers(replace(steps[layer.trained[0]], **dict.fromkeys(maps, 0.0)))
        if not maps:
            yield LayerStep(layer, blocks, numbers)
            continue
        first, *others = maps
        ratios = {name: float((maps[name] / maps[first].clamp(min=_TINY)).median()) for name in others}
        if numbers.decay:  # it goes through the gradient, and is divided as that is: all of it alike here
            numbers = replace(numbers, decay=numbers.decay * float(maps[first].median()))
        yield LayerStep(layer, blocks, replace(numbers, **{first: 1.0}, **ratios), *_factors(maps[first]))


def _factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of rows and columns whose product is a matrix of what is divided by roots of mean squares.

    It is the squares that are factored: where there never was a gradient, what is divided by is next to nothing.
    Nothing is left of a step without a learning rate, as the first one of a warm-up.
    """
    squares = torch.where(matrix > 0, matrix.clamp(min=_TINY) ** -2, 0.0)
    mean = squares.mean().clamp(min=_TINY)
    rows, columns = squares.mean(dim=1), squares.mean(dim=0) / mean
    by_row, by_key = (torch.where(one > 0, one.clamp(min=_TINY) ** -0.5, 0.0) for one in (rows, columns))
    return by_row, by_key


def _numbers(step: Step) -> Step:
    """Return a step whose numbers are Python's."""
    return Step(**{name: float(number) for name, number in vars(step).items()})

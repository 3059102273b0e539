"""Gradients that are nothing but rounding: what an optimiser that divides elementwise makes steps of full size of.

A bias before a BatchNorm has them, or a unit whose examples cancel. SGD moves such a parameter next to nowhere;
Adam divides by the root of its mean square, and no replay can tell what it did. A certificate that fails says so.
"""

import torch
from torch import Tensor

from dualform.query.distance import STORED_EPS
from dualform.query.replay import Replay
from dualform.query.scan import Block
from dualform.query.state import parameter
from dualform.store import Layer, Run, Use

_ROUNDING = 4.0  # times the precision, of the root of the squares that were summed up


def cancelled(run: Run, layer: Layer) -> dict[str, float]:
    """For each trained parameter, the share of the entries of its gradients, over all steps, that rounding explains."""
    last, replay = run.snapshot(run.steps), Replay(run, layer)
    stored = STORED_EPS[run.manifest.storage.dtype]
    eps = {use: max(stored, torch.finfo(parameter(last, layer, use).dtype).eps) for use in layer.trained}
    seen, empty = dict.fromkeys(layer.trained, 0), dict.fromkeys(layer.trained, 0)
    for move in replay.latest_first(last.info.last_step):
        blocks = [replay.slots.block(move.shard, rows) for rows in move.passes]
        for use, moved in move.parts.items():
            squares = sum((added_squares(block, use) for block in blocks), start=torch.zeros_like(moved.gradient))
            rounding = moved.gradient.abs() <= _ROUNDING * eps[use] * squares.sqrt()
            seen[use] += int((squares > 0).sum())
            empty[use] += int((rounding & (squares > 0)).sum())
    return {use.parameter.name: empty[use] / max(seen[use], 1) for use in layer.trained}


def added_squares(block: Block, use: Use) -> Tensor:
    """The squares of what each slot of a backward pass added to the gradient, summed: shaped like the parameter."""
    values = block.values * float(block.factors(use)[0])
    return block.keys.of(use).outer_squares(values)

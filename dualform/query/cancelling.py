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
from dualform.store import Layer, Part, Run

_ROUNDING = 32.0  # times the precision, of the sizes that were summed up: as the audit has it


def cancelled(run: Run, layer: Layer) -> dict[str, float]:
    """For each trained parameter, the share of its units' gradients, over all steps, that rounding explains."""
    last, replay = run.snapshot(run.steps), Replay(run, layer)
    eps = {
        part: max(STORED_EPS[run.manifest.storage.dtype], _eps(parameter(last, layer, part))) for part in layer.trained
    }
    seen, empty = dict.fromkeys(layer.trained, 0), dict.fromkeys(layer.trained, 0)
    for move in replay.latest_first(last.info.last_step):
        blocks = [replay.slots.block(move.shard, rows) for rows in move.passes]
        for part, moved in move.parts.items():
            sizes = sum((_sizes(block, part) for block in blocks), start=torch.zeros(layer.d_out))
            found = moved.gradient if part.columns is None else moved.gradient.norm(dim=1)  # (d_out,)
            seen[part] += int((sizes > 0).sum())
            empty[part] += int(((sizes > 0) & (found.abs() <= _ROUNDING * eps[part] * sizes)).sum())
    return {part.parameter: empty[part] / max(seen[part], 1) for part in layer.trained}


def _eps(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps)


def _sizes(block: Block, part: Part) -> Tensor:
    """sum_t |e_t| ||x_t||, of each unit: what its gradient would be if nothing cancelled."""
    values = block.values.abs() * abs(float(block.factors(part)[0]))
    if part.columns is None:
        return values.sum(dim=0)
    return values.mT @ block.keys.norms(slice(*part.columns)).to(values.dtype)

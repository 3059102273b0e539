"""A layer's parameters from its slots: the dual form, summed up.

W_until = initial W_since + momentum m_since + sum_t c_t e_t x_t^T
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import RULES
from dualform.query.coefficients import Ledger, ParameterCoefficients
from dualform.query.scan import Block, Slots
from dualform.query.selection import Selection
from dualform.store import Layer, Part, Run, Shard

Coefficients = Mapping[str, ParameterCoefficients]


def stored_tensor(shard: Shard, name: str) -> Tensor:
    """A tensor of a shard's state, in the precision it had."""
    bits = torch.from_numpy(np.array(shard[name]))
    return bits.view(torch.bfloat16) if shard.dtype(name) == "BF16" else bits


def as_map(layer: Layer, weight: Tensor) -> Tensor:
    """A weight as the map (d_out, d_in) it is, and back: an embedding's has a row for each key."""
    return weight.mT if layer.one_hot else weight


def initial_part(run: Run, snapshot: Shard, layer: Layer, part: Part, of: Coefficients) -> Tensor:
    """What is left of the weights and the momentum at a snapshot, in float64; a constant stays itself."""
    weight = as_map(layer, stored_tensor(snapshot, f"state/parameters/{part.parameter}").double())
    if part.optimizer is None:
        return weight
    found = of[part.parameter]
    momentum = f"state/optimizers/{part.optimizer}/{part.parameter}/{_momentum_name(run, part)}"
    result = found.initial * weight
    if momentum in snapshot:
        result += found.momentum * as_map(layer, stored_tensor(snapshot, momentum).double())
    return result


def _momentum_name(run: Run, part: Part) -> str:
    assert part.optimizer is not None
    return RULES[run.manifest.optimizers[part.optimizer].kind].momentum


def weights(run: Run, ledger: Ledger, slots: Slots, selection: Selection, since: Shard) -> dict[str, Tensor]:
    """All parameters of a layer, from a snapshot and the chosen slots after it."""
    of = ledger.between(since.info.last_step, selection.until)
    layer = slots.layer
    found = {part: initial_part(run, since, layer, part, of) for part in layer.parts}
    for block in slots.scan(selection, since.info.last_step):
        for part in layer.trained:
            found[part] += contribution(block, part, of).double()
    return {part.parameter: as_map(layer, tensor) for part, tensor in found.items()}


def contribution(block: Block, part: Part, of: Coefficients) -> Tensor:
    """What a block's slots add to a parameter."""
    values = weighted_values(block, part, of)
    if part.columns is None:
        return values.sum(dim=0)
    return block.keys.outer(values, slice(*part.columns))


def weighted_values(block: Block, part: Part, of: Coefficients) -> Tensor:
    """c_t e_t: (slots, d_out)"""
    coefficient = torch.from_numpy(block.coefficients(part, of[part.parameter]))
    return block.values * coefficient.to(block.wide)[:, None]


class OutputFold:
    """The layer's output as attention over the slots: sum_t c_t e_t (x_t . q), biases with key 1."""

    def __init__(self, layer: Layer, queries: Tensor, of: Coefficients) -> None:
        self._layer, self._queries, self._of = layer, queries, of
        self.output = torch.zeros(len(queries), layer.d_out, dtype=torch.float64)

    def add(self, block: Block, scores: object) -> None:
        for part in self._layer.trained:
            values = weighted_values(block, part, self._of)
            if part.columns is None:
                self.output += values.sum(dim=0).double()
            else:
                columns = slice(*part.columns)
                attended = block.keys.weights(self._queries[:, columns], columns)
                self.output += (attended @ values).double()


def initial_output(run: Run, layer: Layer, queries: Tensor, of: Coefficients) -> Tensor:
    """What the layer would say with nothing but its initial part: (queries, d_out)."""
    output = torch.zeros(len(queries), layer.d_out, dtype=torch.float64)
    for part in layer.parts:
        initial = initial_part(run, run.shards[0], layer, part, of)
        output += initial if part.columns is None else queries[:, slice(*part.columns)].double() @ initial.mT
    return output

"""The certificate: how far the dual form is from the weights training really arrived at.

Parameters are rebuilt from their slots and compared with the snapshot taken at the time, for the whole
run and for each chapter. With coefficients that are numbers, both sides are multiplied by random vectors:
that takes one reading of the slots, and estimates the relative error of the change, |dual - primal| /
|W_T - W_0| in the Frobenius norm. With coefficients that are matrices, see certify_elementwise.py.
"""

import numpy as np
import torch
from torch import Tensor

from dualform.query.certify_elementwise import certify_elementwise
from dualform.query.coefficients import Ledger, rule_of
from dualform.query.distance import STORED_EPS, Stretch, distance, rounding_of_slots, rounding_of_weights
from dualform.query.rebuild import Coefficients, initial_part
from dualform.query.scan import Block, Slots
from dualform.query.selection import Selection
from dualform.query.state import parameter
from dualform.store import Layer, Run, Shard, Use
from dualform.store.schema import AUDIT

PROBES = 16


def certify(run: Run, ledger: Ledger, slots: Slots) -> tuple[Stretch | None, list[Stretch]]:
    """A layer over the whole run, up to its last snapshot, and over each chapter that ends with one."""
    if rule_of(run, slots.layer).elementwise:
        return certify_elementwise(run, slots.layer)
    last = run.snapshot(run.steps)
    whole = _Rebuilt(run, ledger, slots.layer, run.shards[0], last)
    chapters = [
        _Rebuilt(run, ledger, slots.layer, before, shard)
        for before, shard in run.chapters()
        if before.has_state and shard.has_state
    ]
    for block in slots.scan(Selection(last.info.last_step)):
        step = int(block.steps[0])
        signals = _Signals(block, whole)
        whole.add(block, signals)
        for chapter in chapters:
            if chapter.covers(step):
                chapter.add(block, signals)
    return whole.stretch() if last.info.last_step else None, [chapter.stretch() for chapter in chapters]


class _Signals:
    """X r for each weight, computed once for all stretches a block is in."""

    def __init__(self, block: Block, rebuilt: "_Rebuilt") -> None:
        self.by_part: dict[Use, Tensor] = {}
        self.norms: dict[Use, Tensor] = {}
        for use in rebuilt.layer.trained:
            self.by_part[use] = block.keys.of(use).pair(rebuilt.vectors[use].mT).mT  # (slots, probes)
            self.norms[use] = self.by_part[use].norm(dim=1)


class _Rebuilt:
    """W r of a layer's parameters between two snapshots: rebuilt from slots, and as it really was."""

    def __init__(self, run: Run, ledger: Ledger, layer: Layer, before: Shard, after: Shard) -> None:
        self.layer = layer
        self._steps = before.info.last_step, after.info.last_step
        self._of: Coefficients = ledger.between(*self._steps)
        generator = torch.Generator().manual_seed(0)
        self.vectors: dict[Use, Tensor] = {}
        self._dual: dict[Use, Tensor] = {}
        self._before: dict[Use, Tensor] = {}
        self._after: dict[Use, Tensor] = {}
        self._eps: dict[Use, float] = {}
        self._squares = dict.fromkeys(layer.trained, 0.0)  # sum of (|c_t| |e_t| |x_t r|)^2
        self._stored_eps = STORED_EPS[run.manifest.storage.dtype]
        for use in layer.trained:
            self.vectors[use] = _vectors(use.width, generator)
            self._dual[use] = self._seen(use, initial_part(run, before, layer, use, self._of))
            self._before[use] = self._seen(use, parameter(before, layer, use).double())
            self._after[use] = self._seen(use, parameter(after, layer, use).double())
            self._eps[use] = torch.finfo(parameter(before, layer, use).dtype).eps

    def _seen(self, use: Use, parameter: Tensor) -> Tensor:
        return parameter @ self.vectors[use]

    def covers(self, step: int) -> bool:
        return self._steps[0] <= step < self._steps[1]

    def add(self, block: Block, signals: _Signals) -> None:
        values = block.values.double()
        sizes = values.norm(dim=1)
        for use in self.layer.trained:
            coefficient = torch.from_numpy(block.coefficients(use, self._of[use.parameter.name]))
            self._dual[use] += values.mT @ (signals.by_part[use] * coefficient[:, None])
            self._squares[use] += float((coefficient * sizes * signals.norms[use]).square().sum())

    def stretch(self) -> Stretch:
        steps, found = self._steps[1] - self._steps[0], {}
        for use in self.layer.trained:
            after = self._after[use]
            of_slots = rounding_of_slots(self._squares[use], max(self._eps[use], self._stored_eps))
            floor = of_slots + rounding_of_weights(steps, after, self._eps[use])
            found[use.parameter.name] = distance(self._dual[use], self._before[use], after, floor)
        return Stretch(*self._steps, found)


def _vectors(width: int, generator: torch.Generator) -> Tensor:
    """(width, probes): scaled so that |W r| estimates |W|; where a key has few entries, it is |W|."""
    if width <= PROBES:
        return torch.eye(width, dtype=torch.float64)
    drawn: Tensor = torch.randn(width, PROBES, generator=generator, dtype=torch.float64)
    return drawn.div(PROBES**0.5)


def audited_steps(run: Run) -> int:
    """Steps whose gradients were explained while recording."""
    return sum(_audited(shard) for _, shard in run.chapters())


def _audited(shard: Shard) -> int:
    residuals = [shard[name] for name in shard.names(AUDIT)]
    return int((~np.isnan(np.stack(residuals))).any(axis=0).sum()) if residuals else 0

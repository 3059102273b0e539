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
from dualform.store import Layer, Part, Run, Shard

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
        self.by_part: dict[Part, Tensor] = {}
        self.norms: dict[Part, Tensor] = {}
        for part in rebuilt.layer.trained:
            if part.columns is None:
                self.by_part[part] = torch.ones(len(block), 1, dtype=torch.float64)
            else:
                columns = slice(*part.columns)
                self.by_part[part] = block.keys.weights(rebuilt.vectors[part].mT, columns).mT  # (slots, probes)
            self.norms[part] = self.by_part[part].norm(dim=1)


class _Rebuilt:
    """W r of a layer's parameters between two snapshots: rebuilt from slots, and as it really was."""

    def __init__(self, run: Run, ledger: Ledger, layer: Layer, before: Shard, after: Shard) -> None:
        self.layer = layer
        self._steps = before.info.last_step, after.info.last_step
        self._of: Coefficients = ledger.between(*self._steps)
        generator = torch.Generator().manual_seed(0)
        self.vectors: dict[Part, Tensor] = {}
        self._dual: dict[Part, Tensor] = {}
        self._before: dict[Part, Tensor] = {}
        self._after: dict[Part, Tensor] = {}
        self._eps: dict[Part, float] = {}
        self._squares = dict.fromkeys(layer.trained, 0.0)  # sum of (|c_t| |e_t| |x_t r|)^2
        self._stored_eps = STORED_EPS[run.manifest.storage.dtype]
        for part in layer.trained:
            if part.columns is not None:
                shape = part.columns[1] - part.columns[0], PROBES
                # scaled so that |W r| estimates |W|
                self.vectors[part] = torch.randn(shape, generator=generator, dtype=torch.float64) / PROBES**0.5
            self._dual[part] = self._seen(part, initial_part(run, before, layer, part, self._of))
            self._before[part] = self._seen(part, parameter(before, layer, part).double())
            self._after[part] = self._seen(part, parameter(after, layer, part).double())
            self._eps[part] = torch.finfo(parameter(before, layer, part).dtype).eps

    def _seen(self, part: Part, parameter: Tensor) -> Tensor:
        return parameter[:, None] if part.columns is None else parameter @ self.vectors[part]

    def covers(self, step: int) -> bool:
        return self._steps[0] <= step < self._steps[1]

    def add(self, block: Block, signals: _Signals) -> None:
        values = block.values.double()
        sizes = values.norm(dim=1)
        for part in self.layer.trained:
            coefficient = torch.from_numpy(block.coefficients(part, self._of[part.parameter]))
            self._dual[part] += values.mT @ (signals.by_part[part] * coefficient[:, None])
            self._squares[part] += float((coefficient * sizes * signals.norms[part]).square().sum())

    def stretch(self) -> Stretch:
        steps, found = self._steps[1] - self._steps[0], {}
        for part in self.layer.trained:
            after = self._after[part]
            of_slots = rounding_of_slots(self._squares[part], max(self._eps[part], self._stored_eps))
            floor = of_slots + rounding_of_weights(steps, after, self._eps[part])
            found[part.parameter] = distance(self._dual[part], self._before[part], after, floor)
        return Stretch(*self._steps, found)


def audited_steps(run: Run) -> int:
    """Steps whose gradients were explained while recording."""
    return sum(_audited(shard) for _, shard in run.chapters())


def _audited(shard: Shard) -> int:
    residuals = [shard[name] for name in shard.names("audit/")]
    return int((~np.isnan(np.stack(residuals))).any(axis=0).sum()) if residuals else 0

"""Choose the dual form of a layer: what can be made of its slots, given what the optimiser made of them.

    dual = Duals(view, ledger)("layers.2")          # linear, elementwise or matrix: chosen here, once, and nowhere else
    dual.rebuild(snapshot)                          # parameters as sums over slots
    dual.scores(queries, directions, valued=True)   # what each slot adds to an output
    dual.group_weights(grouping)                    # what groups of slots have added
    dual.certify()                                  # how far all that is from what training left

Coefficients of SGD and its kin are numbers (linear.py), those of Adam and its kin multiply entry by entry
(elementwise.py), those of Muon as matrices do (matrix.py).
"""

from functools import lru_cache
from typing import Protocol

from torch import Tensor

from dualform.dual.certificate import LayerCertificate
from dualform.dual.coefficients import Array, Ledger, rule_of
from dualform.dual.elementwise import ElementwiseDual
from dualform.dual.group_weights import GroupWeight
from dualform.dual.linear import LinearDual, Strengths
from dualform.dual.matrix import MatrixDual
from dualform.dual.rebuilt import Rebuilt
from dualform.engine import Fold
from dualform.slots import Block, ByTags, View
from dualform.store import Parameter, Shard, Use


class Dual(Protocol):
    """What rebuilding, contributions, muting and certificates need of an optimiser's algebra."""

    def rebuild(self, since: Shard) -> dict[Use, Rebuilt]:
        """Rebuild each use's map, from a snapshot and the view's slots after it. What was not trained stays itself."""

    def initial(self) -> dict[Use, Tensor] | None:
        """Return the part of each map that is due to no slot; None: it is known once the maps are rebuilt."""

    def output_fold(self, queries: Tensor) -> Fold | None:
        """Return a fold for the layer's output as attention over its slots; None: it takes the rebuilt maps."""

    def scores(self, queries: Tensor, directions: Tensor, valued: bool, slots_of: str | None = None) -> Tensor:
        """Return what each slot adds to directions of the output: (slots, queries); without values, its weight.

        Slots are the layer's own, or those of another layer that uses a parameter of it.
        """

    def group_weights(self, grouping: ByTags) -> dict[Parameter, GroupWeight]:
        """Return what the view's slots of each group have added to each trained parameter."""

    def certify(self) -> LayerCertificate:
        """Measure how far the dual form of the run is from its snapshots, whatever the view."""

    def coefficient(self, block: Block) -> Array | None:
        """Return the coefficient of each slot in the layer's weight; None: it is not a number."""

    def strengths(self) -> Strengths:
        """Return what each slot's attention weight can be multiplied by; raise if slots have no single coefficient."""


class Duals:
    """The dual form of each layer of a view. Raises for runs that hold keys only."""

    def __init__(self, view: View, ledger: Ledger) -> None:
        self.view, self.ledger = view, ledger
        self.of = lru_cache(maxsize=None)(self._make)
        self.rebuilt = lru_cache(maxsize=8)(lambda layer: self.of(layer).rebuild(view.run.shards[0]))

    def _make(self, layer: str) -> Dual:
        run = self.view.run
        rule = rule_of(run, run.layers[layer])
        if rule.matrices:
            return MatrixDual(self.view, run.layers[layer], rule)
        if rule.elementwise:
            return ElementwiseDual(self.view, run.layers[layer], rule)
        return LinearDual(self.view, run.layers[layer], rule, self.ledger)

    def initial(self, layer: str) -> dict[Use, Tensor]:
        """Return the part of each map of a layer that is due to no slot."""
        initial = self.of(layer).initial()
        if initial is None:
            return {use: rebuilt.initial for use, rebuilt in self.rebuilt(layer).items()}
        return initial

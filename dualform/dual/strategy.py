"""A layer in its dual form: what can be made of its slots once it is known what the optimiser made of them.

    dual = Duals(view, ledger)("layers.2")          # linear or elementwise: chosen here, once, and nowhere else
    dual.rebuild(snapshot)                          # parameters as sums over slots
    dual.scores(queries, directions, valued=True)   # what each slot adds to an output
    dual.group_weights(grouping)                    # what groups of slots have added
    dual.certify()                                  # how far all that is from what training left

Coefficients of SGD and its kin are numbers (linear.py), those of Adam and its kin matrices (elementwise.py).
"""

from functools import lru_cache
from typing import Protocol

from torch import Tensor

from dualform.dual.certificate import LayerCertificate
from dualform.dual.coefficients import Array, Ledger, rule_of
from dualform.dual.elementwise import ElementwiseDual
from dualform.dual.group_weights import GroupWeight
from dualform.dual.linear import LinearDual, Strengths
from dualform.dual.rebuilt import Rebuilt
from dualform.engine import Fold
from dualform.slots import Block, ByTags, View
from dualform.store import Parameter, Shard, Use


class Dual(Protocol):
    """What rebuilding, contributions, muting and certificates need of an optimiser's algebra."""

    def rebuild(self, since: Shard) -> dict[Use, Rebuilt]:
        """Each use's map, from a snapshot and the view's slots after it. What was not trained stays itself."""

    def initial(self) -> dict[Use, Tensor] | None:
        """The part of each map that is due to no slot; None: it is known once the maps are rebuilt."""

    def output_fold(self, queries: Tensor) -> Fold | None:
        """A fold for the layer's output as attention over its slots; None: it takes the rebuilt maps."""

    def scores(self, queries: Tensor, directions: Tensor, valued: bool) -> Tensor:
        """What each slot adds to directions of the output: (slots, queries). Without values, effective weights."""

    def group_weights(self, grouping: ByTags) -> dict[Parameter, GroupWeight]:
        """What the view's slots of each group have added to each trained parameter."""

    def certify(self) -> LayerCertificate:
        """How far the dual form of the run is from its snapshots, whatever the view."""

    def coefficient(self, block: Block) -> Array | None:
        """The coefficient of each slot in the layer's weight, if it is a number."""

    def strengths(self) -> Strengths:
        """What each slot's attention weight can be multiplied by; raises where a slot has no single coefficient."""


class Duals:
    """The dual form of each layer of a view. Raises for runs that hold keys only."""

    def __init__(self, view: View, ledger: Ledger) -> None:
        self.view, self.ledger = view, ledger
        self.of = lru_cache(maxsize=None)(self._make)
        self.rebuilt = lru_cache(maxsize=8)(self._rebuilt)

    def _make(self, layer: str) -> Dual:
        run = self.view.run
        rule = rule_of(run, run.layers[layer])
        if rule.elementwise:
            return ElementwiseDual(self.view, run.layers[layer], rule)
        return LinearDual(self.view, run.layers[layer], rule, self.ledger)

    def _rebuilt(self, layer: str) -> dict[Use, Rebuilt]:
        """A layer's maps from the beginning of the run."""
        return self.of(layer).rebuild(self.view.run.shards[0])

    def initial(self, layer: str) -> dict[Use, Tensor]:
        """The part of each map of a layer that is due to no slot."""
        found = self.of(layer).initial()
        return {use: one.initial for use, one in self.rebuilt(layer).items()} if found is None else found

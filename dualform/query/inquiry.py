"""What is asked about: some queries to a layer of a run, and the scores its slots get for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dualform.query.folds import AttentionScores, Fold, GivenScores, Scores
from dualform.query.groups import By, Grouping
from dualform.query.scan import Block
from dualform.query.scope import Scope
from dualform.query.search import Search
from dualform.query.units import Units


@dataclass(frozen=True)
class Inquiry:
    """Scores are attention weights, unless they were computed before."""

    scope: Scope
    layer: str
    queries: Tensor  # (queries, d_in)
    given: Tensor | None = None  # (slots, queries), of all slots of the layer
    often: bool = False  # enough has been asked for what takes time and saves time to be made

    def grouping(self, by: By | int | None) -> Grouping:
        return self.scope.grouping(self.layer, by)

    def scan(self, folds: Sequence[Fold]) -> None:
        """Feed all blocks of the chosen slots to the folds."""
        if not folds:
            return
        for block in self.scope.slots(self.layer).scan(self.scope.selection):
            scores = self._scores(block)
            for fold in folds:
                fold.add(block, scores)

    def search(self, k: int, by: By | None, absolute: bool) -> Search | None:
        """A way to the best slots that reads few keys; None if there is none, or it does not pay yet."""
        sketch = self.scope.sketches.of(self.layer) if self.often else None
        if sketch is None:
            return None
        return Search(self.scope.slots(self.layer).keys, sketch, self.scope.members(self.layer, by), k, absolute)

    def units(self, by: tuple[str, ...]) -> Units | None:
        """What shares the first of these tags summed up, by groups of the others; None as above."""
        return self.scope.units(self.layer, by) if self.often else None

    def _scores(self, block: Block) -> Scores:
        return AttentionScores(block, self.queries) if self.given is None else GivenScores(block, self.given)

"""A run seen through a selection: what all questions to it have in common, found once and kept."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from dualform.errors import NotRecorded
from dualform.query.coefficients import Ledger, ParameterCoefficients
from dualform.query.folds import Scores
from dualform.query.groups import AllInOne, By, ByTags, ByTime, Grouping
from dualform.query.scan import Slots
from dualform.query.selection import Selection
from dualform.store import Run


class Scope:
    """Hands out slots and groupings; `kept` holds sums that are good for all queries to come."""

    def __init__(self, run: Run, selection: Selection, ledger: Ledger) -> None:
        self.run, self.selection, self.ledger = run, selection, ledger
        self.slots = lru_cache(maxsize=None)(lambda layer: Slots(run, run.layers[layer]))
        self.grouping = lru_cache(maxsize=64)(self._grouping)
        self.kept: dict[Any, Any] = {}

    def need_single_slots(self, what: str) -> None:
        """Raise for a question that a merged memory, which holds sums only, cannot answer."""
        tag = self.run.manifest.storage.merge
        if tag is not None:
            raise NotRecorded(
                f"this memory holds sums over all visits to the same {tag} (it was recorded with merge={tag!r}): "
                f"it has no {what}. Ask for top(k, per={tag!r}) or total(by={tag!r})"
            )

    @property
    def coefficients(self) -> dict[str, ParameterCoefficients]:
        return self.ledger.between(0, self.selection.until)

    def _grouping(self, layer: str, by: By | int | None) -> Grouping:
        """By tags, by that many stretches of time, or all in one."""
        if by is None:
            return AllInOne()
        if isinstance(by, int):
            return ByTime(by, self.selection.until)
        return ByTags.of(self.run, self.run.layers[layer], by)


def scan(scope: Scope, layer: str, folds: list[Any], queries: Tensor) -> None:
    """Feed all blocks of a layer's chosen slots to the folds."""
    for block in scope.slots(layer).scan(scope.selection):
        scores = Scores(block, queries)
        for fold in folds:
            fold.add(block, scores)

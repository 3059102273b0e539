"""A run seen through a selection: what all questions to it have in common, found once and kept."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from dualform.errors import NotRecorded
from dualform.query.coefficients import Ledger, ParameterCoefficients, rule_of
from dualform.query.groups import AllInOne, By, ByTags, ByTime, Grouping
from dualform.query.rebuild import Rebuilt, initial_part, rebuild
from dualform.query.scan import Slots
from dualform.query.search import Members
from dualform.query.selection import Selection
from dualform.query.sketch import Sketches
from dualform.query.units import Units
from dualform.store import Run, Use


class Scope:
    """Hands out slots and groupings; `kept` holds sums that are good for all queries to come."""

    def __init__(self, run: Run, selection: Selection, ledger: Ledger, sketches: Sketches) -> None:
        self.run, self.selection, self.ledger, self.sketches = run, selection, ledger, sketches
        self.slots = lru_cache(maxsize=None)(lambda layer: Slots(run, run.layers[layer]))
        self.grouping = lru_cache(maxsize=64)(self._grouping)
        self.members = lru_cache(maxsize=8)(self._members)
        self.units = lru_cache(maxsize=8)(self._units)
        self.rebuilt = lru_cache(maxsize=8)(self._rebuilt)
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

    def elementwise(self, layer: str) -> bool:
        """Whether the coefficients of a layer are matrices; raises where there are none."""
        return rule_of(self.run, self.run.layers[layer]).elementwise

    def _rebuilt(self, layer: str) -> dict[Use, Rebuilt]:
        """A layer's parameters from the chosen slots."""
        return rebuild(self.run, self.ledger, self.slots(layer), self.selection, self.run.shards[0])

    def initial(self, layer: str) -> dict[Use, Tensor]:
        """The part of each parameter that is due to no slot."""
        if self.elementwise(layer):
            return {use: found.initial for use, found in self.rebuilt(layer).items()}
        described, first = self.run.layers[layer], self.run.shards[0]
        return {use: initial_part(self.run, first, described, use, self.coefficients) for use in described.uses}

    def _members(self, layer: str, by: By | int | None) -> Members:
        return Members.of(self.slots(layer), self.selection, self.grouping(layer, by))

    def _units(self, layer: str, by: tuple[str, ...]) -> Units | None:
        return Units.of(self.slots(layer), self.selection, self.grouping(layer, by), by[1:], self.sketches.room)

    def _grouping(self, layer: str, by: By | int | None) -> Grouping:
        """By tags, by that many stretches of time, or all in one."""
        if by is None:
            return AllInOne()
        if isinstance(by, int):
            return ByTime(by, self.selection.until)
        return ByTags.of(self.run, self.run.layers[layer], by)

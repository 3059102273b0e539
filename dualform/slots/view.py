"""See a run through a selection: its slots and their groups, made once and cached."""

from functools import lru_cache, partial

from dualform.errors import NotRecorded
from dualform.slots.blocks import Slots, keys_dtype
from dualform.slots.groups import grouping_of
from dualform.slots.selection import Selection
from dualform.store import Run


class View:
    """Hands out a layer's slots, and groupings of them."""

    def __init__(self, run: Run, selection: Selection) -> None:
        self.run, self.selection, self.dtype = run, selection, keys_dtype(run)
        self.slots = lru_cache(maxsize=None)(lambda layer: Slots(run, run.layers[layer], self.dtype))
        self.grouping = lru_cache(maxsize=64)(partial(grouping_of, run, selection.until))  # of a layer, by

    def need_single_slots(self, what: str) -> None:
        """Raise for a question that a merged memory, which holds sums only, cannot answer."""
        tag = self.run.manifest.storage.merge
        if tag is not None:
            raise NotRecorded(
                f"this memory holds sums over all visits to the same {tag} (it was recorded with merge={tag!r}): "
                f"it has no {what}. Ask for top(k, per={tag!r}) or total(by={tag!r})"
            )

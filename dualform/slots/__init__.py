"""A run's slots: which are chosen, in what groups, streamed in blocks."""

from dualform.slots.blocks import NO_ROWS, Block, PassRows, Slots
from dualform.slots.groups import By, ByTags, ByTime, Grouping, OneGroup, checked_by, tag_names
from dualform.slots.selection import Condition, Selection, condition
from dualform.slots.stored_keys import KeyRows, StoredKeys
from dualform.slots.view import View

__all__ = [
    "NO_ROWS",
    "Block",
    "By",
    "ByTags",
    "ByTime",
    "Condition",
    "Grouping",
    "KeyRows",
    "OneGroup",
    "PassRows",
    "Selection",
    "Slots",
    "StoredKeys",
    "View",
    "checked_by",
    "condition",
    "tag_names",
]

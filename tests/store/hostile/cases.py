"""Hostile files as data: what is done to which run, and which file has to be named.

A signed edit has fitting checksums all over, so that only what is behind them can refuse it. Families are made
from the run itself: every key of its documents, every tensor, every number. Whatever was found is kept here.
"""

from collections.abc import Sequence
from typing import Any

from tests.store.hostile.documents import DOCUMENTS
from tests.store.hostile.layers import LAYERS, STEPS
from tests.store.hostile.masks import MASKS
from tests.store.hostile.recipes import RECIPES
from tests.store.hostile.tensors import NUMBERS

SIGNED = [*DOCUMENTS, *LAYERS, *STEPS, *NUMBERS, *MASKS, *RECIPES]

NO_FILES_OF_ITS_OWN: Sequence[Any] = (
    "../outside.npy", "../../etc/passwd", "/etc/passwd", "/dev/zero", "a/b.npy", "a\\b.npy", "C:x.npy", "", ".", "..",
    "x\0.npy", "\x1b[2J.npy", "a\nb.npy", "x" * 300 + ".npy", "link.npy", "endless.npy", "directory.npy",
    "pipe.npy", None, 1, ["x.npy"], {"x": 1},
)  # fmt: skip

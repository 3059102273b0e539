"""Steps that were taken, and wait to be audited and handed to the writer.

What is wrong with a training loop is mostly so from its first step on, and is told in that step. Later steps wait for
one another: between the products of a training every little bit of work is several times as slow as in a loop of its
own. None waits long, though, and none where its rows would have to be kept for the audit alone.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from dualform.recorder.look import Look

_AT_ONCE = 16  # steps at the beginning
_STEPS = 16
_SECONDS = 5.0
_BYTES = 32 << 20  # of rows


class Taken(NamedTuple):
    """A step that was taken."""

    lines: Mapping[str, Sequence[float]]  # of the ledger
    looks: Sequence[Look]


class Waiting:
    """Add steps, and take them when they are `due`."""

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once
        self._steps: list[Taken] = []
        self._taken = 0  # so far
        self._nbytes = 0
        self._since = monotonic()

    def add(self, step: Taken, nbytes: int) -> None:
        self._steps.append(step)
        self._nbytes += nbytes

    @property
    def due(self) -> bool:
        waiting = len(self._steps)
        soon = self._at_once or self._taken + waiting <= _AT_ONCE or waiting >= _STEPS or self._nbytes >= _BYTES
        return soon or monotonic() - self._since >= _SECONDS

    def take(self) -> list[Taken]:
        steps, self._steps = self._steps, []
        self._taken, self._nbytes, self._since = self._taken + len(steps), 0, monotonic()
        return steps

"""Make what torch does repeatable: deterministic algorithms, so many threads, random numbers that a step determines.

    with repeatable(threads=2):
        seed_step(seed=0, step=7)       # dropout of step 7 is the same whenever, and wherever from, it is come to

Whatever was set before is set again afterwards, random states too. All of this belongs to the whole process, so one
thread at a time is within it; others wait.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch

_MODEL = -1  # what comes before step 0
_WORD, _HALF = (1 << 64) - 1, (1 << 32) - 1
ONE_AT_A_TIME = RLock()  # of threads, which share all that is set here


@contextmanager
def repeatable(threads: int | None = None) -> Iterator[int]:
    """Within it the same steps give the same bits; yields the number of threads, which has to be the same, too.

    Args:
        threads: How many to use; None: as many as there are.
    """
    with ONE_AT_A_TIME:
        deterministic = torch.are_deterministic_algorithms_enabled()
        warns, fills = torch.is_deterministic_algorithms_warn_only_enabled(), _deterministic.fill_uninitialized_memory
        before, states = torch.get_num_threads(), (random.getstate(), np.random.get_state(), torch.get_rng_state())
        torch.use_deterministic_algorithms(True)
        _deterministic.fill_uninitialized_memory = False  # to fill what is written to anyway takes long
        try:
            if threads is not None and threads != before:
                torch.set_num_threads(threads)
            yield before if threads is None else threads
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)
            _deterministic.fill_uninitialized_memory = fills
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])


_deterministic: Any = torch.utils.deterministic


def _mixed(number: int) -> int:
    """Return 63 bits of which each depends on all of a number's: neighbouring steps have unrelated random numbers."""
    number = (number ^ (number >> 64)) * 0x9E3779B97F4A7C15 & _WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _WORD
    return (number ^ (number >> 31)) >> 1


def seed_model(seed: int) -> None:
    """Seed everything that draws random numbers while a model is made."""
    seed_step(seed, _MODEL)


def seed_step(seed: int, step: int) -> None:
    """Seed everything that draws random numbers in a step: batches, dropout."""
    whole = _mixed((seed << 32) + step + 1)
    low, high = whole & _HALF, whole >> 32
    torch.default_generator.manual_seed(whole)  # torch.manual_seed would keep a traceback for each device it waits for
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(whole)
    random.seed(low)
    np.random.seed(high)

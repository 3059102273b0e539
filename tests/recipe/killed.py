"""Trains runs, and is killed: `python -m tests.recipe.killed DIRECTORY KILLS` leaves runs, and the state each ended in.

Each life is a fork of a process that has imported torch, and has computed nothing yet.
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import dualform
from dualform.errors import RunExists
from tests.recipe.trainings import recipe_of

STEPS, OPTIONS = 300, {"every": 20, "keep": {"0": "slots", "*": "snapshots"}, "threads": 1}
_LONGEST_LIFE = 0.4  # in seconds


def recipe() -> dualform.Recipe:
    return recipe_of("conv", "AdamW", {"lr": 0.01}, clip=1.0)


def live(run: Path) -> None:
    """Train, or go on training, to the end."""
    with suppress(RunExists):  # it is finished, and was killed just then
        recipe().train(run, STEPS, **OPTIONS)
    model = dualform.load(run).model(recipe().model())
    torch.save(dict(model.state_dict()), run.with_suffix(".tmp"))
    run.with_suffix(".tmp").rename(run.with_suffix(".pt"))


def forked(run: Path) -> int:
    """Begin a life; return its process."""
    process = os.fork()
    if not process:
        try:
            live(run)
        except BaseException as error:
            print(f"{run}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return process


def main(directory: Path, kills: int) -> None:
    chance, number = random.Random(0), 0
    while kills or not (directory / f"run{number}.pt").exists():
        if (directory / f"run{number}.pt").exists():
            number += 1
        process = forked(directory / f"run{number}")
        if kills:
            time.sleep(chance.uniform(0, _LONGEST_LIFE))
            os.kill(process, signal.SIGKILL)
            kills -= 1
        _, status = os.waitpid(process, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

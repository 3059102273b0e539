"""Trains in a process of its own: `python -m tests.recipe.elsewhere DIRECTORY`."""

import sys
from pathlib import Path

import torch

from tests.recipe.trainings import recipe_of


def main(directory: Path) -> None:
    for task in ("dropout", "carried"):
        torch.rand(7)  # this process has drawn other random numbers
        for keep, name in (("slots", "kept"), ("snapshots", "made")):
            recipe = recipe_of(task, "AdamW", {"lr": 0.01})
            recipe.train(directory / f"{task}-{name}", 6, every=4, keep=keep, threads=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

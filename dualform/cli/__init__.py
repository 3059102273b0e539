"""The command line: parse, call, print.

    dualform demo
    dualform attend runs/demo --index 3 --per id

Everything heavy is imported inside the commands, so that `--help` and `info` do not wait for torch.
"""

# Importing a module registers its commands; `--help` lists them in this order.
from dualform.cli import info, attend, suspects, retrain, view, report, demo, reproduce  # noqa: F401  # isort: skip
from dualform.cli.app import app, main

__all__ = ["app", "main"]

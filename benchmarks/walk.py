"""How far a reader has to walk: the functions and files that one question, or one recorded step, goes through.

    python -m benchmarks.walk               # three walks, with their limits; exit code 1 if one is longer
    python -m benchmarks.walk --list        # and every function on the way
    python -m benchmarks.walk --shape       # the longest functions and files, private functions that are used once

Counted with `sys.setprofile`, in all threads: functions of this package, each once; comprehensions and lambdas are
counted with the function they stand in. A warm question is one that was asked so often that an index answers it.
"""

import argparse
import ast
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import dualform

PACKAGE = Path(dualform.__file__).parent
LONGEST_FUNCTION, LONGEST_FILE = 40, 500  # lines


class Limit(NamedTuple):
    """The maximum of each."""

    functions: int
    files: int


LIMITS = {
    "a warm top(10, per='id')": Limit(64, 17),
    "a cold top(10, per='id')": Limit(103, 22),
    "a recorded step": Limit(50, 14),  # of which 10 in 3 say whose its rows are, 4 in 1 what no layer records
}


class Walk:
    """The functions of this package that were called, by file."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    @contextmanager
    def followed(self) -> Iterator[None]:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    @property
    def functions(self) -> dict[Path, list[str]]:
        by_file: dict[Path, list[str]] = {}
        for code in sorted(self._codes, key=lambda code: (code.co_filename, code.co_firstlineno)):
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
                by_file.setdefault(path.relative_to(PACKAGE), []).append(code.co_qualname.replace(".<locals>", ""))
        return by_file

    @property
    def length(self) -> Limit:
        return Limit(sum(map(len, self.functions.values())), len(self.functions))


def recorded_step(path: Path) -> tuple[Walk, nn.Module, torch.Tensor]:
    """Record a small training, and follow a step that neither audits nor seals."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, labels = torch.randn(512, 64), torch.randint(10, (512,))
    walk = Walk()
    with dualform.record(model, optimizer, path) as recorder:
        for step in range(40):
            ids = torch.randint(len(inputs), (32,))

            def take_step(ids: torch.Tensor = ids) -> None:
                recorder.tag(id=ids, label=labels[ids])
                loss = F.cross_entropy(model(inputs[ids]), labels[ids])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

            if step == 20:  # after the first sixteen, and before another sixteen have come together
                with walk.followed():
                    take_step()
            else:
                take_step()
            if step == 30:
                recorder.sync()  # so that there are two chapters
    return walk, model, inputs


def questions(path: Path, model: nn.Module, inputs: torch.Tensor) -> tuple[Walk, Walk]:
    """Follow a first question to a run, and one that comes after many."""
    memory = dualform.load(path)

    def ask(row: int) -> None:
        memory.attend(model, inputs[row : row + 1])["2"].top(10, per="id")

    cold, warm = Walk(), Walk()
    with cold.followed():
        ask(0)
    for row in range(1, 10):
        ask(row)
    with warm.followed():
        ask(10)
    return warm, cold


def walks() -> dict[str, Walk]:
    with TemporaryDirectory() as directory:
        step, model, inputs = recorded_step(Path(directory) / "run")
        warm, cold = questions(Path(directory) / "run", model, inputs)
    return dict(zip(LIMITS, (warm, cold, step), strict=True))


def longest() -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return functions and files with their lines, the longest first."""
    functions, files = [], []
    for path in PACKAGE.rglob("*.py"):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        files.append((len(text.splitlines()), name))
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        functions += [(_lines(node), f"{name}:{node.lineno} {node.name}") for node in nodes]
    return sorted(functions, reverse=True), sorted(files, reverse=True)


def _lines(function: ast.FunctionDef) -> int:
    """Return the number of lines from the first to the last, without the docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    return lines - ((first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0)


def used_once() -> tuple[int, int]:
    """Return how many private functions are used once, and how many there are."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    once = every = 0
    for text in texts.values():
        words = Counter(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__"):
                every += 1
                once += words[node.name] == 2
    return once, every


def show_shape(say: Callable[[str], None]) -> None:
    functions, files = longest()
    for title, longest_first in (("longest functions", functions), ("longest files", files)):
        say(f"{title}:")
        for lines, name in longest_first[:5]:
            say(f"  {lines:>4} {name}")
    once, every = used_once()
    say(f"private functions that are used once: {once} of {every} ({100 * once / every:.0f} %)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name every function on the way")
    parser.add_argument("--shape", action="store_true", help="also tell the longest functions and files")
    options = parser.parse_args()
    too_long = False
    for name, walk in walks().items():
        limit, length = LIMITS[name], walk.length
        too_long |= length.functions > limit.functions or length.files > limit.files
        print(f"{name}: {length.functions} functions in {length.files} files (at most {limit[0]} in {limit[1]})")
        if options.list:
            for path, functions in walk.functions.items():
                print(f"  {path.as_posix()}: {', '.join(functions)}")
    if options.shape:
        show_shape(print)
    return int(too_long)


if __name__ == "__main__":
    sys.exit(main())

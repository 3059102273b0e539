"""The claim: what a language model attends to after a prompt is told in less than a second.

    dualform reproduce charlm && python -m benchmarks.prompts results/charlm/runs/charlm

Prompts are pieces of the training text itself. Each is answered as `dualform attend --prompt` does it, passages
included, but without the start of Python; the first one also reads what is kept for all later ones. Beside it
stands what reading all stored bytes once takes, which no full scan can do without.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

import dualform
from dualform.experiments.language.answers import ask
from dualform.experiments.language.network import LanguageModel
from dualform.experiments.language.training import TEXT
from dualform.text import Text

_LENGTH = 60  # tokens of a prompt


def seconds_to_answer(path: Path, prompts: int) -> list[float]:
    memory = dualform.load(path)
    text, model = Text.load(path / TEXT), memory.model(LanguageModel(**memory.about["arguments"]))
    seconds = []
    for start in np.linspace(0, len(text) - _LENGTH, prompts, dtype=int).tolist():
        prompt, began = text.excerpt(start, start + _LENGTH), perf_counter()
        ask(memory, model, text, prompt)
        seconds.append(perf_counter() - began)
    return seconds


def seconds_to_read(path: Path) -> float:
    """Sum all bytes of the run, nearly all of them keys, in words of eight."""
    began = perf_counter()
    for file in path.glob("shard-*.safetensors"):
        np.memmap(file, np.uint64, mode="r", shape=file.stat().st_size // 8).sum()
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of dualform reproduce charlm or wordlm")
    parser.add_argument("--prompts", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    first, *later = seconds_to_answer(options.run, options.prompts)
    reading = median(seconds_to_read(options.run) for _ in range(3))
    results = {"first": first, "later": median(later), "reading": reading, "later / reading": median(later) / reading}
    if options.json:
        print(json.dumps(results))
    else:
        print("seconds:", ", ".join(f"{name} {value:.2f}" for name, value in results.items()))


if __name__ == "__main__":
    main()

"""The claim: an LSTM whose keys and errors can be seen trains about as fast as PyTorch's fused one.

    python -m benchmarks.lstm --hidden 256 --hidden 1024

A step is a forward and a backward pass over 100 time steps of a batch of 64. Three modules with equal weights
take turns at it in one process: torch.nn.LSTM, dualform.nn.LSTM and, as what one would write by hand, a
torch.nn.LSTMCell in a Python loop. A ratio is the median over all turns of a module's time over that of
torch.nn.LSTM in the same turn: a busy machine is busy for both. The first turn, to warm up, is not counted.
"""

import argparse
import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import dualform.nn

_TIME = 100
_BATCH = 64


class Loop(nn.Module):
    """A torch.nn.LSTMCell, unrolled by autograd."""

    def __init__(self, d_in: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(d_in, hidden)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        states = (inputs.new_zeros(inputs.shape[1], self.cell.hidden_size),) * 2
        output = []
        for row in inputs:
            states = self.cell(row, states)
            output.append(states[0])
        return torch.stack(output), states


def contestants(d_in: int, hidden: int) -> dict[str, nn.Module]:
    """Make the three modules, with equal weights."""
    torch.manual_seed(0)
    fused, visible, loop = nn.LSTM(d_in, hidden), dualform.nn.LSTM(d_in, hidden), Loop(d_in, hidden)
    visible.load_state_dict(fused.state_dict())
    loop.cell.load_state_dict({name.removesuffix("_l0"): value for name, value in fused.state_dict().items()})
    return {"torch": fused, "dualform": visible, "loop": loop}


def stepper(module: nn.Module, inputs: Tensor, errors: Tensor) -> Callable[[], float]:
    """Return a function that takes one step and returns its seconds."""

    def step() -> float:
        module.zero_grad()
        start = perf_counter()
        output, _ = module(inputs)
        output.backward(errors)
        return perf_counter() - start

    return step


def measure(d_in: int, hidden: int, turns: int) -> dict[str, Any]:
    """Measure the milliseconds of a step and the ratios to torch.nn.LSTM, by module."""
    inputs, errors = torch.randn(_TIME, _BATCH, d_in), torch.randn(_TIME, _BATCH, hidden)
    steps = {name: stepper(module, inputs, errors) for name, module in contestants(d_in, hidden).items()}
    times = [{name: step() for name, step in steps.items()} for _ in range(turns + 1)][1:]
    return {
        "d_in": d_in,
        "hidden": hidden,
        "ms": {name: 1e3 * median(turn[name] for turn in times) for name in steps},
        "ratio": {name: median(turn[name] / turn["torch"] for turn in times) for name in steps},
        "ratios": sorted(turn["dualform"] / turn["torch"] for turn in times),
        "turns": turns,
        "threads": torch.get_num_threads(),
    }


def _report(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{_TIME} time steps, batch {_BATCH}, float32, {results[0]['threads']} threads, {results[0]['turns']} turns",
        "hidden  d_in  torch ms  dualform ms  loop ms  dualform / torch (all turns)  loop / torch",
    ]
    for row in results:
        ms, ratio = row["ms"], row["ratio"]
        spread = f"{ratio['dualform']:.2f}  ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f})"
        lines.append(
            f"{row['hidden']:6}{row['d_in']:6}{ms['torch']:10.1f}{ms['dualform']:13.1f}{ms['loop']:9.1f}"
            f"{spread:>30}{ratio['loop']:14.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lstm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hidden", type=int, action="append", help="once per size; 256 and 1024 if not given")
    parser.add_argument("--input", type=int, action="append", help="once per size; 64 if not given")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    sizes = [(d_in, hidden) for hidden in options.hidden or [256, 1024] for d_in in options.input or [64]]
    results = [measure(d_in, hidden, options.turns) for d_in, hidden in sizes]
    print(json.dumps(results, indent=1) if options.json else _report(results))


if __name__ == "__main__":
    main()

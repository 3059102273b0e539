"""The claim: recurrent layers whose keys and errors can be seen train about as fast as PyTorch's fused ones.

    python -m benchmarks.recurrent --kind LSTM --kind GRU --hidden 256 --hidden 1024 --layers 1 --layers 2

A step is a forward and a backward pass over 100 time steps of a batch of 64. Three modules with equal weights
take turns at it in one process: torch's own, dualform's and, as what one would write by hand for one layer, torch's
cell in a Python loop. A ratio is the median over all turns of a module's time over that of torch's own in the same
turn: a busy machine is busy for both. The first turn, to warm up, is not counted.
"""

import argparse
import json
from collections.abc import Callable
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import dualform.nn

_TIME = 100
_BATCH = 64


class Loop(nn.Module):
    """A cell of torch's, unrolled by autograd."""

    def __init__(self, kind: str, d_in: int, hidden: int) -> None:
        super().__init__()
        self.cell = getattr(nn, f"{kind}Cell")(d_in, hidden)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        state: Any = None
        output = []
        for row in inputs:
            state = self.cell(row, state)
            output.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(output), state


def contestants(kind: str, d_in: int, hidden: int, layers: int) -> dict[str, nn.Module]:
    """Make the modules, with equal weights; the loop for one layer only."""
    torch.manual_seed(0)
    fused, visible = (getattr(module, kind)(d_in, hidden, layers) for module in (nn, dualform.nn))
    visible.load_state_dict(fused.state_dict())
    modules = {"torch": fused, "dualform": visible}
    if layers == 1:
        loop = modules["loop"] = Loop(kind, d_in, hidden)
        loop.cell.load_state_dict({name.removesuffix("_l0"): value for name, value in fused.state_dict().items()})
    return modules


def stepper(module: nn.Module, inputs: Tensor, errors: Tensor) -> Callable[[], float]:
    """Return a function that takes one step and returns its seconds."""

    def step() -> float:
        module.zero_grad()
        start = perf_counter()
        output, _ = module(inputs)
        output.backward(errors)
        return perf_counter() - start

    return step


def measure(kind: str, d_in: int, hidden: int, layers: int, turns: int) -> dict[str, Any]:
    """Measure the milliseconds of a step and the ratios to torch's own module, by module."""
    inputs, errors = torch.randn(_TIME, _BATCH, d_in), torch.randn(_TIME, _BATCH, hidden)
    modules = contestants(kind, d_in, hidden, layers)
    steps = {name: stepper(module, inputs, errors) for name, module in modules.items()}
    times = [{name: step() for name, step in steps.items()} for _ in range(turns + 1)][1:]
    return {
        "kind": kind,
        "d_in": d_in,
        "hidden": hidden,
        "layers": layers,
        "ms": {name: 1e3 * median(turn[name] for turn in times) for name in steps},
        "ratio": {name: median(turn[name] / turn["torch"] for turn in times) for name in steps},
        "ratios": sorted(turn["dualform"] / turn["torch"] for turn in times),
        "turns": turns,
        "threads": torch.get_num_threads(),
    }


def _report(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{_TIME} time steps, batch {_BATCH}, float32, {results[0]['threads']} threads, {results[0]['turns']} turns",
        "kind  layers  hidden  d_in  torch ms  dualform ms  dualform / torch (all turns)  loop / torch",
    ]
    for row in results:
        ms, ratio = row["ms"], row["ratio"]
        spread = f"{ratio['dualform']:.2f}  ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f})"
        loop = f"{ratio['loop']:.2f}" if "loop" in ratio else "-"
        lines.append(
            f"{row['kind']:4}{row['layers']:8}{row['hidden']:8}{row['d_in']:6}{ms['torch']:10.1f}{ms['dualform']:13.1f}"
            f"{spread:>30}{loop:>14}"
        )
    return "\n".join(lines)


def main() -> None:
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recurrent", description=description)
    kinds = ["LSTM", "GRU", "RNN"]
    parser.add_argument("--kind", action="append", choices=kinds, help="once per kind; LSTM and GRU if not given")
    parser.add_argument("--hidden", type=int, action="append", help="once per size; 256 and 1024 if not given")
    parser.add_argument("--input", type=int, action="append", help="once per size; 64 if not given")
    parser.add_argument("--layers", type=int, action="append", help="once per number; 1 and 2 if not given")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    kinds, hidden = options.kind or kinds[:2], options.hidden or [256, 1024]
    cases = product(kinds, options.input or [64], hidden, options.layers or [1, 2])
    results = [measure(*case, options.turns) for case in cases]
    print(json.dumps(results, indent=1) if options.json else _report(results))


if __name__ == "__main__":
    main()

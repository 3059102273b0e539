"""The claim: recorded by two processes, a data-parallel training takes so many plain data-parallel ones.

    python -m benchmarks.processes

The paper's MNIST network (784-800-800-10, SGD, 64 examples a step) and the GPT of `benchmarks.whole_models` (16 texts a
step, AdamW) are trained on random numbers with DistributedDataParallel over gloo, half a batch in each of two processes
of one thread. Each process trains them twice, plain and recorded, in turns (`benchmarks.turns`); the first one's ratios
are reported, and the same training recorded by one process for comparison.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dualform
from benchmarks.command import run as run_command
from benchmarks.turns import take_turns
from benchmarks.whole_models import Loop, Sizes, Subject, gpt_subject

_TURNS = 7  # the first of which warms up


def mnist_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 10))


def mnist_subject() -> Subject:
    """Return the paper's network with its optimiser, and random images that are black for four fifths, as MNIST's."""

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.rand(64, 784, generator=generator)
        return torch.where(images > 0.8, images, 0.0), torch.randint(10, (64,), generator=generator)

    return Subject(mnist_network, partial(torch.optim.SGD, lr=1e-2), batch, turn=60)


SUBJECTS: dict[str, Callable[[], Subject]] = {"MNIST": mnist_subject, "GPT": lambda: gpt_subject(Sizes())}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure both models by two processes and by one; what they are trained on is random, whatever data there are."""
    return {
        name: {size: measured(name, size, make().turn // 3 if quick else make().turn) for size in (1, 2)}
        for name, make in SUBJECTS.items()
    }


def measured(name: str, size: int, turn: int) -> dict[str, Any]:
    """Train in so many processes, and return what the first one measures."""
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        command = [sys.executable, "-m", "benchmarks.processes", "worker", name, directory, str(turn), str(size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"{name} could not be trained by {size} processes")
        result: dict[str, Any] = json.loads(outputs[0])
        return result


def work(name: str, directory: Path, turn: int, size: int, rank: int) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=size)
    subject = SUBJECTS[name]()
    generator = torch.Generator().manual_seed(0)
    whole = [subject.batch(generator) for _ in range(_TURNS * turn)]
    batches = [(inputs.chunk(size)[rank], targets.chunk(size)[rank]) for inputs, targets in whole]
    wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel if size > 1 else lambda model: model
    plain, recorded = (
        Loop(wrap(loop.model), loop.optimizer, batches) for loop in (Loop.fresh(subject, batches) for _ in range(2))
    )
    recorder = dualform.record(recorded.model, recorded.optimizer, directory / "run")
    turns = [range(number * turn, (number + 1) * turn) for number in range(_TURNS)]
    result = take_turns(recorder, plain.train, partial(recorded.train, recorder=recorder), turns)
    if size > 1:
        dist.destroy_process_group()
    if not rank:
        print(json.dumps({**result, "certificate": dualform.load(directory / "run").verify().headline}))


def report(results: dict[str, Any]) -> str:
    """Return the ratios as lines."""
    lines = []
    for name, by_size in results.items():
        for size, of_size in by_size.items():
            ratios, processes = of_size["record_overheads"], f"{size} process{'es' if int(size) > 1 else ''}"
            lines += [
                f"{name}, {processes}: recorded {of_size['record_overhead']:.2f} times "
                f"plain (turns {ratios[0]:.2f} to {ratios[-1]:.2f}); a plain step takes "
                f"{of_size['plain_ms']['median']:.1f} ms",
                f"  {of_size['certificate']}",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        run_command("processes", __doc__, measure, report)

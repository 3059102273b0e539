"""The claim: runs of Adam are certified, and asked for contributions, in at most twice the time of their training.

    python -m benchmarks.elementwise --data data --optimizer AdamW

The paper's MNIST network (784-800-800-10, batches of 128) is trained for 3,000 steps by an optimiser that
divides elementwise, once plain and once recorded on the same batches. Then `verify` replays the second moments and
measures the dual form of all layers, and the contributions of all slots of all layers to one logit of a
test image are computed. Both are given as multiples of the plain training time in the same process. `added_up` is
how far the initial part and all contributions are from the layer's output along the direction asked for,
and `memory_mb` how far resident memory grew meanwhile, mapped files not counted.

Pixels come from DIR/mnist (the IDX files; --data or DUALFORM_DATA), else they are random.
"""

import argparse
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Any

import psutil
import torch

import dualform
from benchmarks.recording import Data, Loop, mnist, network, noise

_OPTIONS: dict[str, dict[str, float]] = {"AdamW": {"weight_decay": 1e-2}}
_LR = {"Adagrad": 1e-2}


class Watched:
    """Measures the highest anonymous memory of this process inside a `with` block, minus what it was before."""

    def __enter__(self) -> "Watched":
        self._process, self._done = psutil.Process(), Event()
        self._before = self._anonymous()
        self.highest = 0.0
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _anonymous(self) -> float:
        info = self._process.memory_info()
        return float(info.rss - info.shared) / 1e6

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.highest = max(self.highest, self._anonymous() - self._before)

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def loop(optimizer: str) -> Loop:
    model = network()
    options = {"lr": _LR.get(optimizer, 1e-3), **_OPTIONS.get(optimizer, {})}
    return Loop(model, getattr(torch.optim, optimizer)(model.parameters(), **options))


def measure(data: Data, optimizer: str, steps: int, dtype: str) -> dict[str, Any]:
    batches = list(data.batches(steps))
    loop(optimizer).train(data, batches[:50])  # to warm up
    plain = sum(loop(optimizer).train(data, batches))
    recorded_loop = loop(optimizer)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        began = perf_counter()
        with dualform.record(recorded_loop.model, recorded_loop.optimizer, Path(directory) / "run", dtype=dtype) as r:
            recorded_loop.train(data, batches, r)
        recorded = perf_counter() - began
        memory = dualform.load(Path(directory) / "run")
        with Watched() as of_verify:
            began = perf_counter()
            certificate = memory.verify()
            verify = perf_counter() - began
        spotlight = memory.attend(recorded_loop.model, data.images[:1])
        seconds, added_up = {}, {}
        with Watched() as of_contributions:
            for layer in spotlight:
                began = perf_counter()
                contribution = spotlight[layer].contribution()
                total = contribution.total()["total"]
                seconds[layer] = perf_counter() - began
                output = contribution.output()
                added_up[layer] = float(abs(contribution.initial() + torch.from_numpy(total) - output) / abs(output))
    return {
        "verify_vs_training": verify / plain,
        "contributions_vs_training": sum(seconds.values()) / plain,
        "seconds": {"plain": plain, "recorded": recorded, "verify": verify, "contributions": seconds},
        "relative_error": {name: layer.relative_error for name, layer in certificate.layers.items()},
        "certificate": certificate.headline,
        "added_up": added_up,
        "memory_mb": {"verify": of_verify.highest, "contributions": of_contributions.highest},
        "optimizer": optimizer,
        "steps": steps,
        "dtype": dtype,
        "data": data.source,
        "threads": torch.get_num_threads(),
    }


def _report(results: dict[str, Any]) -> str:
    seconds, memory = results["seconds"], results["memory_mb"]
    errors = ", ".join(f"{error:.1e}" for error in results["relative_error"].values())
    added_up = ", ".join(f"{error:.1e}" for error in results["added_up"].values())
    by_layer = ", ".join(f"{value:.1f}" for value in seconds["contributions"].values())
    return "\n".join(
        [
            f"{results['steps']} steps of {results['optimizer']} on {results['data']} data, "
            f"stored as {results['dtype']}",
            f"training       {seconds['plain']:.1f} s plain, {seconds['recorded']:.1f} s recorded",
            f"verify         {seconds['verify']:.1f} s, {results['verify_vs_training']:.2f} times the plain training, "
            f"memory grown by {memory['verify']:.0f} MB",
            f"certificate    {results['certificate']}; by layer {errors}",
            f"contributions  {sum(seconds['contributions'].values()):.1f} s ({by_layer} by layer), "
            f"{results['contributions_vs_training']:.2f} times the plain training, "
            f"memory grown by {memory['contributions']:.0f} MB",
            f"added up       to {added_up} of the output along the direction, by layer",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elementwise", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--dtype", default="float32", choices=["float16", "float32", "float64"])
    parser.add_argument("--data", default=os.environ.get("DUALFORM_DATA"), help="a directory with mnist/ in it")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    data = noise() if options.data is None else mnist(Path(options.data))
    results = measure(data, options.optimizer, options.steps, options.dtype)
    print(json.dumps(results, indent=1) if options.json else _report(results))


if __name__ == "__main__":
    main()

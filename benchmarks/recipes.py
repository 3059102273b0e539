"""The claim: a run without slots costs next to nothing to record and to keep, and a pass over it is one training.

    python -m benchmarks.recipes --data data
    python -m benchmarks.recipes --gpt 100          # a nanoGPT's 100 steps: slots would take hundreds of gigabytes

The paper's MNIST network (784-800-800-10, batches of 128, SGD with momentum, clipped gradients) is trained by a recipe
that keeps snapshots, and by a plain loop, in turns in one process. `record_overhead` is the median over all turns of
the time of a recorded turn over that of the plain one before it. `bytes_ratio` compares the run, snapshots among them,
with its keys and values as raw float32. `first_pass` is what the first question about all layers and all slots takes
(the best 500 slots of each class, totals by class; the slots are made again for it), and `verify` a certificate, both
as multiples of the plain training.
"""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.command import run as run_command
from benchmarks.recording import Data, mnist, network, noise
from benchmarks.whole_models import GPT, Sizes
from dualform.recipe.batches import ShuffledEpochs
from dualform.recipe.train import Options, recorded

_BATCH, _TURN = 128, 250
_WIDTHS = (784, 800, 800, 10)
NANO = Sizes(width=384, layers=6, heads=6, tokens=256, vocabulary=65)
_TEXTS = 64  # of a batch


def mnist_recipe(data: Data, steps: int) -> dualform.Recipe:
    """Return the recipe of the paper's run."""
    rows = ShuffledEpochs(len(data.images), _BATCH, seed=0)

    def batch(step: int) -> dict[str, Tensor]:
        ids = rows.rows(step)
        return {"id": ids, "images": data.images[ids], "label": data.labels[ids]}

    return dualform.Recipe(
        model=network,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9),
        batch=batch,
        losses=lambda model, batch: F.cross_entropy(model(batch["images"]), batch["label"], reduction="none"),
        tags=["label"],
        clip=1.0,
    )


def plain_loop(data: Data) -> tuple[nn.Module, Callable[[int], None]]:
    """Return the same network, and what takes a step of it as anybody would."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
    rows = ShuffledEpochs(len(data.images), _BATCH, seed=0)

    def take_step(step: int) -> None:
        ids = rows.rows(step)
        loss = F.cross_entropy(model(data.images[ids]), data.labels[ids])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return model, take_step


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    images = noise() if data is None else mnist(data)
    steps = 500 if quick else 3000
    recipe, (_, plain_step) = mnist_recipe(images, steps), plain_loop(images)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"
        plain, ratios = 0.0, []
        with recorded(recipe, path, steps, Options(keep="snapshots")) as training:
            for first in range(0, steps, _TURN):
                torch.use_deterministic_algorithms(False)  # a plain training has no need of them
                began = perf_counter()
                for step in range(first, first + _TURN):
                    plain_step(step)
                of_plain = perf_counter() - began
                torch.use_deterministic_algorithms(True)
                began = perf_counter()
                for _ in range(_TURN):
                    training.take_step()
                training.session.writer.wait()
                ratios.append((perf_counter() - began) / of_plain)
                plain += of_plain
        memory = dualform.load(path, recipe=recipe, cache="8 GB")
        spotlight = memory.attend(training.model, images.images[:1])
        began = perf_counter()
        spotlight.collect(dualform.Top(500, by="label"), dualform.Total(by="label"))
        first_pass = perf_counter() - began
        began = perf_counter()
        certificate = dualform.load(path, recipe=recipe, cache="8 GB").verify()
        verified = perf_counter() - began
        began = perf_counter()
        memory.retrain(without={"id": [int(recipe.batch_of(steps // 2).ids[0])]})
        retrained = perf_counter() - began
        size = dualform.load(path).summary()["bytes"]
    raw = 4 * _BATCH * steps * sum(a + b for a, b in pairwise(_WIDTHS))
    return {
        "steps": steps,
        "data": images.source,
        "threads": torch.get_num_threads(),
        "plain_seconds": plain,
        "record_overhead": median(ratios),
        "record_overheads": sorted(ratios),
        "bytes": size,
        "bytes_ratio": size / raw,
        "first_pass": first_pass / plain,
        "verify": verified / plain,
        "retrain": retrained / plain,
        "certificate": certificate.headline,
    }


def report(results: dict[str, Any]) -> str:
    turns = ", ".join(f"{ratio:.2f}" for ratio in results["record_overheads"])
    return "\n".join(
        [
            f"{results['steps']} steps on {results['data']} data, {results['threads']} threads; a plain training takes "
            f"{results['plain_seconds']:.1f} s",
            f"recording     {results['record_overhead']:.3f} times the plain run (turns {turns})",
            f"on disk       {results['bytes'] / 1e6:,.0f} MB, {results['bytes_ratio']:.4f} of raw keys and values",
            f"first pass    {results['first_pass']:.2f} trainings: best slots and totals of all layers",
            f"certificate   {results['verify']:.2f} trainings: {results['certificate']}",
            f"retraining    {results['retrain']:.2f} trainings, without one example",
        ]
    )


def gpt_recipe(sizes: Sizes, texts: int = _TEXTS) -> dualform.Recipe:
    """Return the recipe of a GPT on random windows of a text of random characters that repeat themselves."""
    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(sizes.vocabulary, (5,), generator=generator) for _ in range(500)]
    text = torch.cat([words[int(i)] for i in torch.randint(500, (40_000,), generator=generator)])

    def batch(step: int) -> dict[str, Tensor]:
        starts = torch.randperm(len(text) - sizes.tokens - 1)[:texts]  # seeded by the step
        windows = text[starts[:, None] + torch.arange(sizes.tokens + 1)]
        return {"id": starts, "tokens": windows}

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["tokens"][:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch["tokens"][:, 1:], reduction="none")  # (texts, tokens)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    return dualform.Recipe(model=lambda: GPT(sizes), optimizer=optimizer, batch=batch, losses=losses, clip=1.0)


def gpt(steps: int) -> str:
    """Train a nanoGPT, and ask what is behind the next letter of a prompt."""
    recipe = gpt_recipe(NANO)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"
        began = perf_counter()
        model = recipe.train(path, steps, keep="snapshots", every=max(steps // 2, 1))
        trained = perf_counter() - began
        memory = dualform.load(path, recipe=recipe, cache="3 GB")
        summary = memory.summary()
        run_layers = summary["layers"].values()
        numbers = sum(layer["slots"] * (layer["d_in"] + layer["d_out"]) for layer in run_layers)
        prompt = recipe.batch_of(0).content["tokens"][:1, :32]
        spotlight = memory.attend(model, prompt, rows=-1)
        began = perf_counter()
        answers = spotlight.collect(dualform.Top(3, per="id"))
        asked = perf_counter() - began
    return "\n".join(
        [
            f"{steps} steps of a GPT with {memory.coverage.numbers:,} parameters took {trained:,.0f} s",
            f"on disk {summary['bytes'] / 1e6:,.0f} MB; keys and values of its {len(answers)} layers as float32 would "
            f"take {4 * numbers / 1e9:,.0f} GB",
            f"one prompt, all layers: {asked:,.0f} s, {asked / trained:.2f} trainings",
            *memory.notes,
            str(answers["lm_head"][0]),
        ]
    )


if __name__ == "__main__":
    if "--gpt" in sys.argv:
        print(gpt(int(sys.argv[sys.argv.index("--gpt") + 1])))
    else:
        run_command("recipes", __doc__, measure, report)

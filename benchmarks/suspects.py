"""The claim: labels that were changed at random are found among the first suspects.

    python -m benchmarks.suspects --data data

Of the digits (1,437) and of MNIST (10,000 images), 5 % of the labels are changed at random; an MLP is trained on them
(64-64-64-10, 600 steps of 32; 784-128-128-10, 800 steps of 64; SGD with momentum at 0.01). `auc` is the chance that a
changed label is more suspect than another, `precision` how many of as many suspects as were changed are changed ones,
`suggested` how many of those found get their true label suggested. Beside it the loss at the end of the training.
"""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dualform
from benchmarks.command import run as run_command
from dualform.datasets import image_catalogue
from dualform.recipe.batches import ShuffledEpochs

_CHANGED = 0.05


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    digits = image_catalogue.load("digits", None).train
    results = {"digits": compare(digits.raw.float(), digits.labels, (64, 64, 64, 10), 32, 600)}
    if data is not None and not quick:
        mnist = image_catalogue.load("mnist", data).train
        results["MNIST"] = compare(mnist.raw[:10_000].float(), mnist.labels[:10_000], (784, 128, 128, 10), 64, 800)
    return results


def compare(raw: Tensor, true: Tensor, widths: tuple[int, ...], size: int, steps: int) -> dict[str, Any]:
    """Train on labels of which some are changed, and look for them."""
    generator = torch.Generator().manual_seed(0)
    images = (raw - raw.mean()) / raw.std()
    changed = torch.randperm(len(true), generator=generator)[: round(_CHANGED * len(true))]
    labels = true.clone()
    labels[changed] = (labels[changed] + torch.randint(1, 10, (len(changed),), generator=generator)) % 10
    rows = ShuffledEpochs(len(images), size, seed=0)

    def network() -> nn.Sequential:
        linear = [nn.Linear(a, b) for a, b in pairwise(widths)]
        return nn.Sequential(*(m for one in linear[:-1] for m in (one, nn.ReLU())), linear[-1])

    def batch(step: int) -> dict[str, Tensor]:
        ids = rows.rows(step)
        return {"id": ids, "images": images[ids], "label": labels[ids]}

    recipe = dualform.Recipe(
        network,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        batch,
        lambda model, batch: F.cross_entropy(model(batch["images"]), batch["label"], reduction="none"),
    )
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        model = recipe.train(Path(directory) / "run", steps, dtype="float32")
        memory = dualform.load(Path(directory) / "run")
        began = perf_counter()
        table = memory.suspects(len(images))
        seconds = perf_counter() - began
    with torch.no_grad():
        losses = F.cross_entropy(model(images), labels, reduction="none").double()
    score, ids = torch.full((len(images),), -2.0, dtype=torch.float64), torch.from_numpy(table["id"].astype("int64"))
    score[ids] = torch.from_numpy(table["score"])
    first = set(table["id"][: len(changed)].tolist()) & set(changed.tolist())
    suggested = dict(zip(table["id"].tolist(), table["suggested"].tolist(), strict=True))
    return {
        **agreement(score, changed),
        "suggested": sum(suggested[one] == int(true[one]) for one in first) / max(len(first), 1),
        "seconds": seconds,
        "final_loss": agreement(losses, changed),
    }


def agreement(score: Tensor, changed: Tensor) -> dict[str, float]:
    """Return how well a score tells what was changed."""
    wrong = torch.zeros(len(score), dtype=torch.bool).index_fill_(0, changed, True)
    ranks = score.argsort().argsort().double() + 1
    count = len(changed)
    auc = (ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(score) - count))
    return {"auc": float(auc), "precision": float(wrong[score.topk(count).indices].float().mean())}


def report(results: dict[str, Any]) -> str:
    lines = []
    for name, found in results.items():
        loss = "{auc:.4f}, {precision:.2f}".format(**found["final_loss"])
        lines.append(
            f"{name}: AUC {found['auc']:.4f}, precision {found['precision']:.2f}, true label suggested "
            f"{found['suggested']:.2f}, {found['seconds']:.2f} s; by final loss {loss}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_command("suspects", __doc__, measure, report)

"""The claim: attention per class of a whole test set takes less time than the training, and a fraction of a dense scan.

    python -m benchmarks.totals --data data

The paper's network is trained and recorded (784-800-800-10, 3,000 steps of 128). Then every test image is
asked for its total absolute attention per class in every layer, which is what Table 1 needs, and the
same is done the straight way: all keys as float32 in memory, one product with all queries in blocks, an
absolute value, a boolean mask for each class. `totals_vs_dense` is how many times faster the first is.

A dense scan takes minutes, so it is made of 1,024 queries and scaled up: its time is proportional to them.
Images come from DIR/mnist (--data or DUALFORM_DATA), else they are random.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

import dualform
from benchmarks.command import run
from dualform.datasets import image_catalogue
from dualform.datasets.images import ImageSet, Split
from dualform.experiments.table1 import layer_inputs
from dualform.experiments.tasks import Task, tasks
from dualform.experiments.training import PAPER, Phase, train

_BLOCK = 256  # queries of the dense scan at a time: their scores take 400 MB


def noise() -> ImageSet:
    """Make random pixels in MNIST's shape."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        raw = torch.randint(256, (count, 784), generator=generator, dtype=torch.uint8)
        return Split(raw, torch.randint(10, (count,), generator=generator))

    return ImageSet("random", tuple("0123456789"), (28, 28), split(60_000), split(10_000))


def keys_and_labels(path: Path, layer: str) -> tuple[Tensor, Tensor]:
    """Read all keys of a layer as float32, and their labels, as docs/internals/format.md says."""
    shards = [load_file(file) for file in sorted(path.glob("shard-*.safetensors"))]
    shards = [shard for shard in shards if f"slots/{layer}/keys" in shard]
    rows = [
        np.ldexp(shard[f"slots/{layer}/keys"].astype(np.float32), shard[f"slots/{layer}/key_exponent"][:, None])
        for shard in shards
    ]
    keys = np.concatenate(rows)
    if all(f"slots/{layer}/key_index" in shard for shard in shards):
        keys = keys[np.concatenate([shard[f"slots/{layer}/key_index"] for shard in shards])]
    labels = np.concatenate([shard[f"tags/{layer}/label"] for shard in shards])
    return torch.from_numpy(keys), torch.from_numpy(labels)


def dense_totals(keys: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """(queries, classes)"""
    masks = [labels == label for label in range(10)]
    blocks = []
    for block in queries.split(_BLOCK):
        scores = (keys @ block.mT).abs_()  # (slots, queries)
        blocks.append(torch.stack([scores[mask].sum(dim=0) for mask in masks], dim=1))
    return torch.cat(blocks)


def paper_task(data: Path | None) -> Task:
    """Load MNIST, or noise in its shape."""
    return tasks([noise() if data is None else image_catalogue.load("mnist", data)])[0]


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure what is claimed."""
    steps, queries, dense_queries = (600, 2000, 256) if quick else (3000, 10_000, 1024)
    return compare(paper_task(data), steps, queries, dense_queries)


def compare(task: Task, steps: int, queries: int, dense_queries: int) -> dict[str, Any]:
    """Train, ask, and ask the straight way."""
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"
        trained = train([Phase((task,), steps)], PAPER, seed=0, path=path)
        images = task.test.images[:queries]
        began = perf_counter()
        spotlight = dualform.load(path).attend(trained.model, images)
        ours, dense, differences = {}, {}, []
        asked = perf_counter() - began
        for layer, inputs in layer_inputs(trained.model, images).items():
            began = perf_counter()
            table = spotlight[layer].total(by="label", absolute=True)
            ours[layer] = perf_counter() - began
            keys, labels = keys_and_labels(path, layer)
            began = perf_counter()
            totals = dense_totals(keys, labels, inputs[:dense_queries])
            dense[layer] = (perf_counter() - began) * len(images) / len(totals)
            sums = torch.from_numpy(table["total"]).view(len(images), -1)[: len(totals)]
            differences.append(float(((sums - totals) / totals).abs().max()))
    late = [layer for layer in ours if layer != "layer-0"]
    return {
        "totals_vs_dense": {
            **{layer: dense[layer] / ours[layer] for layer in ours},
            "layers 1 and 2": sum(dense[layer] for layer in late) / sum(ours[layer] for layer in late),
            "all": sum(dense.values()) / (asked + sum(ours.values())),
        },
        "seconds": {"training": trained.seconds, "model": asked, "totals": ours, "dense": dense},
        "analysis_vs_training": (asked + sum(ours.values())) / trained.seconds,
        "largest_relative_difference": max(differences),
        "steps": steps,
        "queries": len(images),
        "dense_queries": min(dense_queries, len(images)),
        "data": task.name,
        "threads": torch.get_num_threads(),
    }


def report(results: dict[str, Any]) -> str:
    seconds = results["seconds"]
    lines = [
        f"{results['queries']:,} queries over {128 * results['steps']:,} slots of {results['data']} data",
        f"training, recorded  {seconds['training']:.1f} s",
        *(
            f"{layer}             {seconds['totals'][layer]:6.2f} s, dense {seconds['dense'][layer]:7.1f} s: "
            f"{results['totals_vs_dense'][layer]:.0f} times faster"
            for layer in seconds["totals"]
        ),
        f"layers 1 and 2      {results['totals_vs_dense']['layers 1 and 2']:.0f} times faster",
        f"all three           {results['totals_vs_dense']['all']:.0f} times faster than dense, "
        f"{results['analysis_vs_training']:.2f} of the training time",
        f"largest difference  {results['largest_relative_difference']:.1e}, relative",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run("totals", __doc__, measure, report)

"""The claim: one exact query takes as long as reading the stored keys once, a thousand take half a product or less.

    python -m benchmarks.queries --data data

The paper's network is trained and recorded (784-800-800-10, 3,000 steps of 128). Then, for each layer:

- one query: the 500 best slots of every class, the totals of the classes and the timeline, each time for another test
  image, by `layer.collect(Top(500, by="label"), Total(by="label"), Timeline(60))`, once a sketch of the keys was made;
- `read`: all bytes of the stored keys are read once (summed up as if they were float32), from the same maps;
- `torch`: all keys as float32 in memory, one product, the 500 best and the sum of every class;
- `faiss`, `usearch`: the 500 best of all by an exact flat index over the same float32 keys, less than was asked;
- a thousand queries: the ten best slots of each, against torch's product and topk of float32 keys, 100 at a time;
- a hundred queries: the 500 best of every class, likewise.

Both sides begin with queries, not with images. `first` is the first answer of a fresh memory, which reads every key,
checks its checksum, and scores it; `sketch` is what the fourth query pays once, and sums of keys for the totals.
What torch finds has to be found by us, but for scores that differ by rounding.

Of the same run, recorded as a user would, `bytes_ratio` is its bytes over its keys and values as raw float32, and
`certificate` the distance between dual and primal form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dualform
from benchmarks.command import in_ms, run, seconds
from benchmarks.totals import keys_and_labels, paper_task
from dualform import Timeline, Top, Total
from dualform.attention.spotlight import LayerSpotlight
from dualform.experiments.table1 import layer_inputs
from dualform.experiments.training import PAPER, Phase, train
from dualform.store import Run

HEADLINE = "layer-1"  # 800 wide, every key stored: the most to read
_BEST, _FEW = 500, 10
_ASKED = (Top(_BEST, by="label"), Total(by="label"), Timeline(60))
_BLOCK = 100  # queries of torch's product at a time: their scores take 150 MB
_SLACK = 1e-5  # of the largest score: what rounding may leave between two ways to the same product

Times = list[float]


@dataclass(frozen=True)
class Layer:
    """A layer of the run, queries to it, and its keys as other tools need them."""

    run: Path
    name: str
    queries: Tensor  # (test images, width)
    keys: Tensor  # (slots, width), float32
    classes: list[Tensor]  # the slots of each

    @classmethod
    def of(cls, path: Path, name: str, queries: Tensor) -> "Layer":
        keys, labels = keys_and_labels(path, name)
        return cls(path, name, queries, keys, [torch.nonzero(labels == label).flatten() for label in range(10)])

    def ask(self, memory: dualform.Memory, first: int, count: int = 1) -> LayerSpotlight:
        return memory.attend({self.name: self.queries[first : first + count]})[self.name]

    def read(self, times: int) -> Times:
        """Measure reading every byte of the stored keys, once they are in memory and checked."""
        shards = [shard for _, shard in Run(self.run).chapters if shard.key_rows(self.name)]
        flat = [torch.from_numpy(shard[f"slots/{self.name}/keys"].reshape(-1).view(np.float32)) for shard in shards]
        return seconds(lambda _: [some.sum() for some in flat], times)

    def best_by_torch(self, number: int) -> list[tuple[Tensor, Tensor]]:
        """Return scores and slots of the best of each class, and the sum of the class."""
        scores, top = self.keys @ self.queries[number], []
        for slots in self.classes:
            of_class = scores[slots]
            best = of_class.topk(min(_BEST, len(slots)))
            of_class.sum()
            top.append((best.values, slots[best.indices]))
        return top

    def many_by_torch(self, count: int) -> Tensor:
        """(queries, 10): the scores of the best slots."""
        blocks = self.queries[:count].split(_BLOCK)
        return torch.cat([(block @ self.keys.mT).topk(_FEW, dim=1).values for block in blocks])

    def deep_by_torch(self, count: int) -> None:
        scores = self.queries[:count] @ self.keys.mT
        for slots in self.classes:
            scores[:, slots].topk(min(_BEST, len(slots)), dim=1)


def one_query(layer: Layer, times: int) -> dict[str, Any]:
    """Return the milliseconds of each method, and how many times faster ours is."""
    memory = dualform.load(layer.run)
    first = seconds(lambda _: layer.ask(memory, 0).collect(*_ASKED), 1)
    sketch = seconds(lambda number: layer.ask(memory, number).collect(*_ASKED), 3)[-1:]
    asked = [layer.ask(memory, number) for number in range(times)]
    milliseconds: dict[str, Any] = {"ours": in_ms(seconds(lambda number: asked[number].collect(*_ASKED), times))}
    milliseconds |= {"first": in_ms(first), "sketch": in_ms(sketch), "read": in_ms(layer.read(times))}
    milliseconds["torch"] = in_ms(seconds(layer.best_by_torch, times))
    for name, make in _INDEXES.items():
        search = make(layer.keys)
        milliseconds[name] = search if isinstance(search, str) else in_ms(seconds(_each(search, layer.queries), times))
    check(layer, memory)
    return milliseconds


def check(layer: Layer, memory: dualform.Memory, queries: int = 5) -> None:
    """Raise unless torch finds what we find."""
    for number in range(queries):
        table = layer.ask(memory, number).top(_BEST, by="label")
        for label, (scores, _) in enumerate(layer.best_by_torch(number)):
            ours = torch.from_numpy(table.where(label=label)["score"])
            torch.testing.assert_close(ours, scores, rtol=0, atol=_SLACK * float(scores.abs().max()))


def many_queries(layer: Layer, count: int, times: int) -> dict[str, Any]:
    """Measure a thousand queries for their ten best, and a hundred for the 500 best of each class."""
    memory = dualform.load(layer.run)
    layer.ask(memory, 0, _FEW).top(1)  # makes the sketch
    many, deep = layer.ask(memory, 0, count), layer.ask(memory, 0, _BLOCK)
    scores = torch.from_numpy(many.top(_FEW)["score"]).view(count, _FEW)
    expected = layer.many_by_torch(count)
    torch.testing.assert_close(scores, expected, rtol=0, atol=_SLACK * float(expected.max()))
    return {
        "ours": in_ms(seconds(lambda _: many.top(_FEW), times)),
        "torch": in_ms(seconds(lambda _: layer.many_by_torch(count), times)),
        "ours_deep": in_ms(seconds(lambda _: deep.top(_BEST, by="label"), times)),
        "torch_deep": in_ms(seconds(lambda _: layer.deep_by_torch(_BLOCK), times)),
    }


def _each(search: Callable[[Any], object], queries: Tensor) -> Callable[[int], object]:
    rows = queries.numpy()
    return lambda number: search(rows[number : number + 1])


def _faiss(keys: Tensor) -> Callable[[Any], object] | str:
    try:
        import faiss
    except ImportError:
        return "not installed: pip install -c constraints.txt 'dualform[bench]'"
    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys.numpy())
    return lambda query: index.search(query, _BEST)


def _usearch(keys: Tensor) -> Callable[[Any], object] | str:
    try:
        from usearch.index import search
    except ImportError:
        return "not installed: pip install -c constraints.txt 'dualform[bench]'"
    rows, threads = keys.numpy(), torch.get_num_threads()
    return lambda query: search(rows, query, _BEST, metric="ip", exact=True, threads=threads)


_INDEXES = {"faiss": _faiss, "usearch": _usearch}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Train, and ask every layer in every way."""
    steps, times, count = (600, 7, 200) if quick else (3000, 15, 1000)
    task = paper_task(data)
    with TemporaryDirectory(prefix="dualform-benchmark-") as directory:
        path = Path(directory) / "run"
        model = train([Phase((task,), steps)], PAPER, seed=0, path=path).model
        single, many = {}, {}
        for name, queries in layer_inputs(model, task.test.images[:count]).items():
            layer = Layer.of(path, name, queries)
            single[name] = one_query(layer, times)
            many[name] = many_queries(layer, count, 1 if quick else 3)
        memory = dualform.load(path)
        stored, certificate = memory.summary()["bytes"], memory.verify().relative_error
    raw = 4 * 128 * steps * (784 + 800 + 800 + 800 + 800 + 10)
    return {
        "query_vs_read": _times(single[HEADLINE], "ours", "read"),
        "query_vs_torch": _times(single[HEADLINE], "torch", "ours"),
        "query_vs_faiss": _times(single[HEADLINE], "faiss", "ours"),
        "query_vs_usearch": _times(single[HEADLINE], "usearch", "ours"),
        "batch_vs_torch": _times(many[HEADLINE], "torch", "ours"),
        "bytes_ratio": stored / raw,
        "certificate": certificate,
        "one_query_ms": single,
        "many_queries_ms": many,
        "settings": {
            "steps": steps, "slots": 128 * steps, "queries": count, "data": task.name, "headline": HEADLINE,
            "threads": torch.get_num_threads(),
        },
    }  # fmt: skip


def _times(results: dict[str, Any], slow: str, quick: str) -> float | str:
    """Return how many times longer the first takes, by medians; or why that is not known."""
    missing = next((results[name] for name in (slow, quick) if isinstance(results[name], str)), None)
    return missing or float(results[slow]["median"] / results[quick]["median"])


def report(results: dict[str, Any]) -> str:
    """Return a line for each layer and method."""
    settings = results["settings"]
    lines = [f"{settings['slots']:,} slots of {settings['data']} data, {settings['threads']} threads; milliseconds"]
    lines.append(
        f"{results['bytes_ratio']:.3f} of raw float32 keys and values, certificate {results['certificate']:.1e}"
    )
    titles = {"one_query_ms": "one query", "many_queries_ms": f"{settings['queries']:,} queries, 100 of them deep"}
    for kind, title in titles.items():
        for layer, ways in results[kind].items():
            lines += ["", f"{title}, {layer}", *(_line(name, way) for name, way in ways.items())]
    return "\n".join(lines)


def _line(name: str, way: Any) -> str:
    if isinstance(way, str):
        return f"  {name:<12}{way}"
    return f"  {name:<12}{way['median']:>10,.1f}  (quickest {way['min']:,.1f}, slowest {way['spread']:,.1f} more)"


if __name__ == "__main__":
    run("queries", __doc__, measure, report)

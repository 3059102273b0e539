"""The claim: a run takes little more than a third of its keys and values as raw float32. What each choice saves.

    python -m benchmarks.sizes RUN

Nothing is measured in time here: the bytes of a run that was recorded are compared with what they would be without
one choice after the other, all as shares of raw float32 keys and values.
"""

import sys
from pathlib import Path

from dualform.store import Layer, Run

_SMALL = ("pass_step", "pass_rows", "factors", "key_exponent", "value_exponent", "key_index", "visits")


def shares(path: Path) -> dict[str, float]:
    """Return the sizes after each choice, in order; the last is the whole run."""
    run = Run(path)
    item = {"float16": 2, "float32": 4, "float64": 8}[run.manifest.storage.dtype]
    layers = [layer for layer in run.manifest.layers if not layer.keys.index]
    raw = sum(4 * run.slots(layer.name) * (layer.d_in + layer.d_out) for layer in layers)
    keys = sum(item * _rows(run, layer) * layer.d_in for layer in layers)
    values = sum(item * run.slots(layer.name) * layer.d_out for layer in layers)
    stored = _bytes(run, layers, ("values", "value_mask"))
    small = _bytes(run, layers, _SMALL) + sum(
        shard[name].nbytes for shard in run.shards for name in shard.names("tags/")
    )
    snapshots = sum(shard.state_nbytes for shard in run.shards)
    bytes_of = {
        f"in {run.manifest.storage.dtype}": item / 4 * raw,
        "and keys that come again once": keys + values,
        "and values without their zeros": keys + stored,
        "with exponents, numbers of keys, tags": keys + stored + small,
        "with a snapshot for every chapter": keys + stored + small + snapshots,
        "everything": run.nbytes,
    }
    return {name: size / raw for name, size in bytes_of.items()}


def _rows(run: Run, layer: Layer) -> int:
    return sum(shard.key_rows(layer.name) for shard in run.shards)


def _bytes(run: Run, layers: list[Layer], names: tuple[str, ...]) -> int:
    wanted = [f"slots/{layer.name}/{name}" for layer in layers for name in names]
    return sum(shard[name].nbytes for shard in run.shards for name in wanted if name in shard)


def main() -> None:
    for name, share in shares(Path(sys.argv[1])).items():
        print(f"{share:.3f}  {name}")


if __name__ == "__main__":
    main()

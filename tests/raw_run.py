"""Read a run and compute its answers in float64 without dualform: with json, safetensors and numpy, slot by slot."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Array = NDArray[Any]
Shard = tuple[dict[str, Any], dict[str, Array]]  # its document and its tensors


@dataclass
class RawUse:
    """A parameter as one layer uses it: as a map (d_out, width)."""

    name: str
    columns: tuple[int, int] | None  # of the key; None: a bias
    transposed: bool

    def map(self, parameter: Array) -> Array:
        return parameter[:, None] if self.columns is None else parameter.T if self.transposed else parameter

    def back(self, mapped: Array) -> Array:
        return mapped[:, 0] if self.columns is None else mapped.T if self.transposed else mapped

    def of(self, vectors: Array) -> Array:
        """Return the entries of keys or queries that it multiplies."""
        return np.ones((len(vectors), 1)) if self.columns is None else vectors[:, slice(*self.columns)]


@dataclass
class RawLayer:
    """All slots of a layer."""

    uses: list[RawUse]
    keys: Array  # (slots, d_in)
    values: Array  # (slots, d_out)
    steps: Array
    factors: Array  # (slots, uses)
    tags: dict[str, list[Any]]


class RawRun:
    """A run's slots, and what each step made of its gradients."""

    def __init__(self, path: Path) -> None:
        self.manifest = json.loads((path / "manifest.json").read_text())
        self.shards = [_shard(file) for file in sorted(path.glob("*.safetensors"))]
        self.layers = {layer["name"]: self._layer(layer) for layer in self.manifest["layers"]}
        self._kinds = [optimizer["kind"] for optimizer in self.manifest["optimizers"]]

    def start(self, parameter: str) -> Array:
        return self.shards[0][1][f"state/parameters/{parameter}"].astype(np.float64)

    def ledger(self, parameter: str) -> list[dict[str, float]]:
        (entry,) = [entry for entry in self.manifest["parameters"] if entry["name"] == parameter]
        columns = ["stepped", *self.manifest["optimizers"][entry["optimizer"]]["columns"]]
        lines = [line for _, tensors in self.shards for line in tensors.get(f"ledger/{parameter}", np.empty((0, 1)))]
        return [dict(zip(columns, line.tolist(), strict=True)) for line in lines]

    def gradient(self, parameter: str, step: int) -> Array:
        """Return the whole gradient of a step, in the shape of the map."""
        total: Any = 0.0
        for layer in self.layers.values():
            for number, use in enumerate(layer.uses):
                if use.name == parameter:
                    at = layer.steps == step
                    total = total + (layer.values[at] * layer.factors[at, number : number + 1]).T @ use.of(
                        layer.keys[at]
                    )
        return np.asarray(total)

    def responses(self, use: RawUse, until: int) -> tuple[Array, list[Any]]:
        """Return what is left of the initial map, and by what each step's gradient is multiplied (elementwise)."""
        lines, weight = self.ledger(use.name)[:until], use.map(self.start(use.name))
        adam = "beta1" in lines[0] if lines else False
        denominators = self._denominators(use, lines) if adam else [None] * len(lines)
        initial = _propagate(lines, denominators, -1, weight)
        return initial, [_propagate(lines, denominators, step, weight) for step in range(len(lines))]

    def _denominators(self, use: RawUse, lines: list[dict[str, float]]) -> list[Array]:
        """Replay Adam's second moments."""
        weight = use.map(self.start(use.name))
        second, first, result = np.zeros_like(weight), np.zeros_like(weight), []
        for step, line in enumerate(lines):
            raw = self.gradient(use.name, step) * (-1 if line["maximize"] else 1)
            gradient = raw + line["weight_decay"] * weight
            first = line["beta1"] * first + (1 - line["beta1"]) * gradient
            second = line["beta2"] * second + (1 - line["beta2"]) * gradient**2
            count = step + 1
            root = np.sqrt(second / (1 - line["beta2"] ** count)) + line["eps"]
            result.append(root)
            weight = weight - line["lr"] / (1 - line["beta1"] ** count) * first / root
        return result

    def _layer(self, described: dict[str, Any]) -> RawLayer:
        name, width, parts = described["name"], described["d_in"], []
        stored = [tensors[f"slots/{name}/keys"] for _, tensors in self.shards if f"slots/{name}/keys" in tensors]
        powers = [_powers(tensors, name, "key") for _, tensors in self.shards if f"slots/{name}/keys" in tensors]
        keys = [np.eye(width)[rows[:, 0]] if described["keys"]["index"] else rows.astype(np.float64) * power
                for rows, power in zip(stored, powers, strict=True)]  # fmt: skip
        everything, first = np.concatenate(keys) if keys else np.empty((0, width)), 0
        for document, tensors in self.shards:
            if f"slots/{name}/keys" not in tensors:
                continue
            rows = len(tensors[f"slots/{name}/keys"])
            index = tensors.get(f"slots/{name}/key_index", np.arange(first, first + rows))
            counts = tensors[f"slots/{name}/pass_rows"]
            parts.append((everything[index], _values(tensors, name, described["d_out"]),
                          np.repeat(tensors[f"slots/{name}/pass_step"], counts),
                          np.repeat(tensors[f"slots/{name}/factors"], counts, axis=0),
                          {tag: _tag(document, tensors, name, tag) for tag in document["tags"]}))  # fmt: skip
            first += rows
        uses = [RawUse(use["parameter"], use["columns"] and tuple(use["columns"]), described["kind"] == "Embedding")
                for use in described["uses"]]  # fmt: skip
        keys_, values, steps, factors = (np.concatenate([part[i] for part in parts]) for i in range(4))
        tags = {tag: [value for part in parts for value in part[4][tag]] for tag in parts[0][4]}
        return RawLayer(uses, keys_, values, steps, factors, tags)


def _propagate(lines: list[dict[str, float]], denominators: list[Any], source: int, weight: Array) -> Any:
    """Send the initial map (source -1), or a gradient of ones at one step, through all steps."""
    moved: Any = weight if source < 0 else np.zeros_like(weight)
    momentum: Any = np.zeros_like(weight)
    for step, (line, root) in enumerate(zip(lines, denominators, strict=True)):
        gradient = float(step == source) * (-1 if line["maximize"] else 1) + line["weight_decay"] * moved
        if root is not None:
            momentum = line["beta1"] * momentum + (1 - line["beta1"]) * gradient
            moved = moved - line["lr"] / (1 - line["beta1"] ** (step + 1)) * momentum / root
        elif not line["momentum"]:
            moved = moved - line["lr"] * gradient
        else:
            intake = 1.0 if line["fresh"] else 1 - line["dampening"]
            momentum = (0.0 if line["fresh"] else line["momentum"]) * momentum + intake * gradient
            moved = moved - line["lr"] * (gradient + line["momentum"] * momentum if line["nesterov"] else momentum)
    return moved


def _shard(path: Path) -> Shard:
    with safe_open(path, framework="np") as file:
        document = json.loads(file.metadata()["dualform"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return document, tensors | {name: tensors[other] for name, other in document.get("same", {}).items()}


def _powers(tensors: dict[str, Array], layer: str, what: str) -> Array:
    exponent = tensors.get(f"slots/{layer}/{what}_exponent", np.zeros(1, dtype=np.int16))
    return np.ldexp(1.0, exponent)[:, None]


def _values(tensors: dict[str, Array], layer: str, d_out: int) -> Array:
    values = tensors[f"slots/{layer}/values"].astype(np.float64)
    if f"slots/{layer}/value_mask" in tensors:
        mask = np.unpackbits(tensors[f"slots/{layer}/value_mask"], axis=1, count=d_out)
        dense = np.zeros(mask.shape)
        dense[mask == 1] = values
        values = dense
    return values * _powers(tensors, layer, "value")


def _tag(document: dict[str, Any], tensors: dict[str, Array], layer: str, tag: str) -> list[Any]:
    values = tensors[f"tags/{layer}/{tag}"].tolist()
    untagged = tensors.get(f"untagged/{layer}/{tag}", np.zeros(len(values), dtype=bool))
    if document["tags"][tag] == "string":
        texts = _texts(tensors, tag)
        values = [None if missing else texts[code] for code, missing in zip(values, untagged, strict=True)]
    return [None if missing else value for value, missing in zip(values, untagged, strict=True)]


def _texts(tensors: dict[str, Array], tag: str) -> list[str]:
    """Return the text of each code of a string tag."""
    whole, ends = tensors[f"texts/{tag}"].tobytes(), tensors[f"text_ends/{tag}"].tolist()
    return [whole[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]

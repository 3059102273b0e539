"""The golden runs: tiny, and of numbers that are exact in binary, so that every machine writes the same bytes.

    python -m tests.store.golden.make DIRECTORY

Those of a format version are committed under its number and never changed: whatever comes later must read
them. What is asked of them is in `ask`, and what was answered beside them, in answers.json.
"""

import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dualform
from dualform.algebra import RULES
from dualform.store import (
    Column,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    Rows,
    RunWriter,
    StepRecord,
    Storage,
    Use,
)
from dualform.store.chapter import Accounts, Witness
from dualform.store.geometry import Geometry
from dualform.store.schema import OtherParameter, Repetition

Array = NDArray[Any]
State = dict[str, Array]


def use(name: str, shape: tuple[int, ...], columns: tuple[int, int] | None, optimizer: int | None = 0) -> Use:
    return Use(Parameter(name, shape, optimizer), columns)


FC = Layer("fc", "Linear", 3, 2, KeyLayout(3), (use("fc.weight", (2, 3), (0, 3)), use("fc.bias", (2,), None)))
EMBEDDING = Layer("words", "Embedding", 4, 2, KeyLayout(1, index=True), (use("words.weight", (4, 2), (0, 4)),))
LSTM = Layer(
    "lstm.l0", "LSTM", 3, 4, KeyLayout(3),
    (
        use("lstm.weight_ih_l0", (4, 2), (0, 2)), use("lstm.weight_hh_l0", (4, 1), (2, 3)),
        use("lstm.bias_ih_l0", (4,), None), use("lstm.bias_hh_l0", (4,), None, None),
    ),
)  # fmt: skip
WIDE = Layer("wide", "Linear", 3, 70, KeyLayout(3), (use("wide.weight", (70, 3), (0, 3)),))  # leaves zeros out
CONVOLUTION = Layer(
    "conv", "Convolution", 4, 2, KeyLayout(2, geometry=Geometry((2,), (1,), (1,), (1,), (0,))),
    (use("conv.weight", (2, 2, 2), (0, 4)), use("conv.bias", (2,), None)),
)  # fmt: skip
NORM = Layer(
    "norm", "Norm", 3, 3, KeyLayout(3),
    (replace(use("norm.weight", (3,), (0, 3)), groups=3), use("norm.bias", (3,), None)),
)  # fmt: skip
TAGS = {"label": "int", "task": "string", "weight": "float", "odd": "bool"}


def numbers(*shape: int, seed: int) -> Array:
    """Multiples of 1/4 between -1 and 1."""
    found: Array = ((np.arange(np.prod(shape)) * 7 + seed * 5) % 9 - 4).reshape(shape) / 4
    return found


def with_units_off(values: Array, step: int) -> Array:
    """As behind a ReLU: the first slot without what is negative, the second with ever more units off, at last all."""
    found = values.copy()
    found[0] = np.maximum(values[0], 0)
    found[1, : 30 * step] = 0
    return found


def manifest(storage: Storage, optimizer: Optimizer, *layers: Layer) -> Manifest:
    return Manifest("0123456789abcdef", "2022-02-11T00:00:00+00:00", "golden", storage, (optimizer,), layers, {"no": 1})


def initial(layers: tuple[Layer, ...]) -> State:
    parameters = (use.parameter for layer in layers for use in layer.uses)
    return {one.name: numbers(*one.shape, seed=i) for i, one in enumerate(parameters)}


def initial_state(layers: tuple[Layer, ...]) -> State:
    return {f"parameters/{name}": array for name, array in initial(layers).items()}


def columns(state: Mapping[str, Array]) -> dict[str, Column]:
    return {name: Column([array]) for name, array in state.items()}


def rows(layer: Layer, step: int, storage: Storage) -> tuple[Rows, Array, Array]:
    """A backward pass of two slots, and what its keys and values are as matrices; the last step was scaled."""
    exponent = np.array([0, -step], dtype=np.int16) if storage.dtype == "float16" else None
    values = numbers(2, layer.d_out, seed=step)
    values = with_units_off(values, step) if layer == WIDE else values
    if layer.keys.index:
        keys = np.array([[step], [0]], dtype=np.int32)
        matrix = np.eye(layer.d_in)[keys[:, 0]]
    else:
        matrix = numbers(2, layer.d_in, seed=step % 2)  # two batches in turns, so that keys repeat
        keys = matrix.astype(storage.dtype)
    packed = Rows(
        keys=keys,
        key_exponent=None if exponent is None or layer.keys.index else exponent * 0,
        values=values.astype(storage.dtype),
        value_exponent=exponent,
        factors=np.full(len(layer.trained), 0.5 if step == 3 else 1.0),
        tags={
            "label": np.array([step, 1]), "task": np.array(["a", "bé"]), "weight": np.array([0.5, 1.5]),
            "odd": np.array([False, True]),
        },
        may_repeat=layer.kind == "Linear",
    )  # fmt: skip
    scaled = values if exponent is None else values * 2.0 ** exponent.astype(np.float64)[:, None]
    return packed, matrix, scaled


def gradients(layer: Layer, packed: Rows, keys: Array, values: Array) -> Iterator[tuple[str, Array]]:
    for factor, one in zip(packed.factors, layer.trained, strict=True):
        if one.columns is None:
            yield one.parameter.name, factor * values.sum(axis=0)
        else:
            found = factor * values.T @ keys[:, slice(*one.columns)]
            yield one.parameter.name, found.T if layer.keys.index else found


def sgd(parameter: str, state: State, gradient: Array) -> list[float]:
    """One step with lr 1/2, momentum 1/2 and weight decay 1/4; returns its ledger line."""
    name = f"optimizers/0/{parameter}/momentum_buffer"
    fresh, weight = name not in state, state[f"parameters/{parameter}"]
    decayed = gradient + weight / 4
    state[name] = decayed if fresh else state[name] / 2 + decayed
    state[f"parameters/{parameter}"] = weight - state[name] / 2
    return [1.0, 0.5, 0.5, 0.0, 0.25, 0.0, 0.0, float(fresh)]


def adam(parameter: str, state: State, gradient: Array) -> list[float]:
    """One step with lr 1/8, betas 1/2 and 3/4 and eps 1/1024; returns its ledger line."""
    prefix = f"optimizers/0/{parameter}"
    count = state.get(f"{prefix}/step", np.zeros((), dtype=np.float32))
    mean, square = (state.get(f"{prefix}/{name}", gradient * 0) for name in ("exp_avg", "exp_avg_sq"))
    mean, square, steps = mean / 2 + gradient / 2, square * 0.75 + gradient**2 / 4, float(count) + 1
    divisor = np.sqrt(square) / np.sqrt(1 - 0.75**steps) + 2.0**-10
    state[f"parameters/{parameter}"] = state[f"parameters/{parameter}"] - 0.125 / (1 - 0.5**steps) * mean / divisor
    state |= {f"{prefix}/exp_avg": mean, f"{prefix}/exp_avg_sq": square, f"{prefix}/step": count + np.float32(1)}
    return [1.0, 0.125, 2.0**-10, 0.0, 0.0, 0.0, 0.0, 0.5, 0.75, float(count)]


def trained(
    path: Path, kind: str, dtype: str, update: Callable[[str, State, Array], list[float]], *layers: Layer
) -> None:
    """Four steps in two chapters."""
    about = manifest(Storage(dtype), Optimizer(kind, RULES[kind].columns), *layers)
    state = {f"parameters/{name}": array for name, array in initial(layers).items()}
    writer = RunWriter.begin(path, about, columns(state), 1 << 20, overwrite=False)
    for step in range(4):
        ledger: dict[str, list[float]] = {}
        passes: dict[str, list[Rows]] = {}
        for layer in layers:
            packed, keys, values = rows(layer, step, about.storage)
            passes[layer.name] = [packed]
            for name, gradient in gradients(layer, packed, keys, values):
                ledger[name] = update(name, state, gradient)
        writer.append(StepRecord(ledger, {layer.name: 0.0 for layer in layers}, passes), TAGS)
        if step == 1:
            writer.seal(columns(state))
    writer.close(columns(state), "complete")


def rest(path: Path) -> None:
    """Four steps in two chapters of a model with a norm that is accounted for, a frozen weight and a running mean.

    The second slot of every step has no label; the words are dropped before the last step.
    """
    norm, layers = Parameter("norm.weight", (2,), 0), (FC, EMBEDDING)
    about = replace(
        manifest(Storage("float32"), Optimizer("SGD", RULES["SGD"].columns), *layers),
        others=(OtherParameter(norm, "LayerNorm is of no known kind"),),
        frozen_numbers=3,
    )
    trained = {f"parameters/{name}": array for name, array in initial(layers).items()}
    trained["parameters/norm.weight"] = np.ones(2)
    writer = RunWriter.begin(path, about, columns(trained | {"parameters/frozen": numbers(3, seed=1)}), 1 << 20, False)
    for step in range(4):
        ledger: dict[str, list[float]] = {}
        passes: dict[str, list[Rows]] = {}
        for layer in layers:
            packed, keys, values = rows(layer, step, about.storage)
            for name, gradient in gradients(layer, packed, keys, values):
                ledger[name] = sgd(name, trained, gradient)
            label = np.ma.MaskedArray(packed.tags["label"], mask=[False, True])
            if layer == FC or step < 3:
                passes[layer.name] = [packed._replace(tags={"label": label})]
        if step == 3:
            writer.drop(["words"])
            writer.note("nothing of this is real")
        gradient = numbers(2, seed=step)
        ledger["norm.weight"] = sgd("norm.weight", trained, gradient)
        mean = np.array([step, -step], dtype=np.float32)
        accounts = Accounts(columns({"norm.weight": gradient}), columns({"norm.running_mean": mean}))
        residual = {"fc": 0.0, "words": 0.0 if step < 3 else float("nan")}
        writer.append(StepRecord(ledger, residual, passes, accounts), {"label": "int"})
        if step == 1:
            writer.seal(columns(trained))
    writer.close(columns(trained), "complete")


def maps(path: Path) -> None:
    """Four steps in two chapters of a convolution, whose input maps are stored, and of a norm, with groups of outputs.

    A step sees a map of three or four pixels, with a zero before the first one: as many patches of two pixels each.
    """
    about = manifest(Storage("float32"), Optimizer("SGD", RULES["SGD"].columns), CONVOLUTION, NORM)
    state = {f"parameters/{name}": array for name, array in initial((CONVOLUTION, NORM)).items()}
    writer = RunWriter.begin(path, about, columns(state), 1 << 20, overwrite=False)
    for step in range(4):
        extent, factors = 3 + step % 2, np.ones(2)
        pixels, errors = numbers(extent, 2, seed=step), numbers(extent, 2, seed=step + 1)
        before = np.concatenate([np.zeros((1, 2)), pixels[:-1]])
        patches = np.stack([before, pixels], axis=2)  # (positions, channels, taps)
        normed, normed_errors = numbers(2, 3, seed=step), numbers(2, 3, seed=step + 2)
        ledger = {
            "conv.weight": sgd("conv.weight", state, np.einsum("po,pct->oct", errors, patches)),
            "conv.bias": sgd("conv.bias", state, errors.sum(axis=0)),
            "norm.weight": sgd("norm.weight", state, (normed * normed_errors).sum(axis=0)),
            "norm.bias": sgd("norm.bias", state, normed_errors.sum(axis=0)),
        }
        passes = {
            "conv": Rows(
                keys=pixels.astype(np.float32), key_exponent=None, values=errors.astype(np.float32),
                value_exponent=None, factors=factors, tags={"label": np.full(extent, step)}, may_repeat=False,
                extents=(extent,), slots=extent,
            ),
            "norm": Rows(
                keys=normed.astype(np.float32), key_exponent=None, values=normed_errors.astype(np.float32),
                value_exponent=None, factors=factors, tags={"label": np.array([step, 1])}, may_repeat=False,
            ),
        }  # fmt: skip
        record = StepRecord(ledger, {"conv": 0.0, "norm": 0.0}, {name: [one] for name, one in passes.items()})
        writer.append(record, {"label": "int"})
        if step == 1:
            writer.seal(columns(state))
    writer.close(columns(state), "complete")


def merged(path: Path) -> None:
    """Keys summed up by position, in two chapters of one step; the run was cut off."""
    about = manifest(Storage("float32", values=False, merge="position"), Optimizer("Lion", ()), FC)
    state = columns({f"parameters/{name}": array for name, array in initial((FC,)).items()})
    writer = RunWriter.begin(path, about, state, 1 << 20, overwrite=False)
    for step in range(2):
        writer.append(StepRecord({"fc.weight": [1.0], "fc.bias": [1.0]}, {"fc": 0.0}, {}), {"position": "int"})
        writer.put({
            "fc": Rows(
                keys=numbers(3, 3, seed=step).astype(np.float32), key_exponent=None, values=None, value_exponent=None,
                factors=np.zeros(0), tags={"position": np.array([1, 2, 300]) + step}, may_repeat=False,
                visits=np.array([1, 2, 3]),
            )
        })  # fmt: skip
        writer.seal(state)
    writer.wait()
    writer.abandon()


class Made(nn.Module):
    """A layer whose slots are made again, and one whose are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.words = nn.Linear(3, 2, dtype=torch.float64), nn.Embedding(4, 2, dtype=torch.float64)
        weights = initial(MADE_AGAIN)
        self.load_state_dict({name: torch.from_numpy(weights[name]) for name in self.state_dict()})


def batch(step: int) -> dict[str, Any]:
    """Two examples, what they are to be multiplied with, and an error for each of both layers."""
    words = [step, 0]
    return {
        "id": [2 * step, 2 * step + 1], "label": [step, 1], "x": torch.from_numpy(numbers(2, 3, seed=step % 2)),
        "words": torch.tensor(words), "errors": torch.from_numpy(numbers(2, 2, seed=step)),
    }  # fmt: skip


def losses(model: nn.Module, of: Mapping[str, Any]) -> torch.Tensor:
    """Linear in all weights, so that gradients are exact: twice the errors, for the mean of two."""
    assert isinstance(model, Made)
    each: torch.Tensor = ((model.fc(of["x"]) + model.words(of["words"])) * of["errors"] * 2).sum(1)
    return each


MADE_AGAIN = (replace(FC, stored=False), EMBEDDING)
RECIPE = dualform.Recipe(
    Made, lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.25), batch, losses,
    tags=["label"],
)  # fmt: skip


def made_again(path: Path) -> None:
    """Four steps in two chapters, of a recipe: slots of one layer are made again, and both have the same tags."""
    about = replace(
        manifest(Storage("float32"), Optimizer("SGD", RULES["SGD"].columns), *MADE_AGAIN), recipe=Repetition(0, 1)
    )
    state = initial_state(MADE_AGAIN)
    writer = RunWriter.begin(path, about, columns(state), 1 << 20, overwrite=False)
    for step in range(4):
        of = batch(step)
        x, errors, words = of["x"].numpy(), of["errors"].numpy(), np.eye(4)[of["words"].numpy()]
        weights = [state[f"parameters/{name}"] for name in ("fc.weight", "fc.bias", "words.weight")]
        loss = float(((x @ weights[0].T + weights[1] + words @ weights[2]) * errors).sum())
        gradient = {"fc.weight": errors.T @ x, "fc.bias": errors.sum(axis=0), "words.weight": words.T @ errors}
        ledger = {name: sgd(name, state, of_parameter) for name, of_parameter in gradient.items()}
        tags = {"id": np.array(of["id"]), "label": np.array(of["label"])}
        made = Rows(None, None, None, None, np.empty(0), tags, may_repeat=False, slots=2)
        stored = Rows(
            keys=of["words"].numpy().astype(np.int32)[:, None], key_exponent=None, values=errors.astype(np.float32),
            value_exponent=None, factors=np.ones(1), tags=tags, may_repeat=False,
        )  # fmt: skip
        witness = Witness(loss, zlib.crc32(np.array(of["id"], dtype=np.int64).tobytes()))
        residual = {"fc": float("nan"), "words": 0.0}
        record = StepRecord(ledger, residual, {"fc": [made], "words": [stored]}, witness=witness)
        writer.append(record, {"id": "int", "label": "int"})
        if step == 1:
            writer.seal(columns(state))
    writer.close(columns(state), "complete")


RUNS: dict[str, Callable[[Path], None]] = {
    "sgd": lambda path: trained(path, "SGD", "float16", sgd, FC, EMBEDDING, LSTM),
    "adam": lambda path: trained(path, "Adam", "float32", adam, FC),
    "merged": merged,
    "rest": rest,
    "zeros": lambda path: trained(path, "SGD", "float16", sgd, WIDE),
    "maps": maps,
    "made_again": made_again,
}


def ask(path: Path) -> dict[str, Any]:
    """Some of everything that can be asked of a run."""
    memory = dualform.load(path, RECIPE if path.name == "made_again" else None)
    certificate = memory.verify()
    found: dict[str, Any] = {"steps": memory.steps, "exact": certificate.ok, "tags": memory.tags, "about": memory.about}
    for name in memory.layers:
        width = {"words": 4, "conv": 4}.get(name, 3)
        layer = memory.attend({name: torch.eye(width)[:2] * 2})[name]
        tag = memory.merged_by or "label"
        found[name] = {"top": layer.top(3, per=tag).to_dict(), "total": layer.total(by=tag).to_dict()}
        if memory.merged_by is None:
            found[name]["output"] = layer.output().tolist()
            one = 1 if path.name in ("maps", "made_again") else None
            left_out = {"task": "a"} if "task" in memory.tags else {"label": one}
            muted = memory.without(**left_out).weights(name)
            found[name]["without"] = {parameter: weight.tolist() for parameter, weight in muted.items()}
    if path.name == "made_again":
        retrained = memory.retrain(without={"id": 3})
        found["retrained"] = {name: weight.tolist() for name, weight in retrained.named_parameters()}
    found["coverage"], found["notes"] = str(memory.coverage), memory.notes
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    answers = {}
    for name, make in RUNS.items():
        make(directory / name)
        (directory / name / "writer.lock").unlink()
        answers[name] = ask(directory / name)
    (directory / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()

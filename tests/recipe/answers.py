"""What a memory answers, as numbers and texts by name; and what its slots are, however they came there."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dualform
from dualform.recipe.replay import TrainedAgain
from dualform.slots import Selection, View
from dualform.store import Run

Array = NDArray[Any]


def run_of(path: Path, recipe: dualform.Recipe | None = None, cache: int = 1 << 30) -> Run:
    """What a memory is of."""
    return Run(path, None if recipe is None else partial(TrainedAgain, recipe, cache))


def slots_by_chapter(run: Run) -> dict[tuple[str, int, str], bytes]:
    """Every byte of decoded keys and values, and of what is known of passes, by layer, chapter and column."""
    columns = {}
    for name, layer in run.layers.items():
        slots = View(run, Selection(run.steps)).slots(name)
        parts, eye = run.slot_shards(name), torch.eye(layer.d_in)
        steps = np.concatenate([np.repeat(*part.passes(name)) for part in parts])
        for before, chapter in run.chapters:
            first, last = before.info.last_step, chapter.info.last_step
            numbers = [i for i, part in enumerate(parts) if first <= part.info.first_step < last]
            places = np.flatnonzero((steps >= first) & (steps < last))
            blocks = [block for _, block in slots.at(slots.numbers(places))]
            pieces: dict[str, list[Array]] = {
                "keys": [block.keys.pair(eye.to(block.dtype)).mT.numpy() for block in blocks],
                "values": [block.values.numpy() for block in blocks],
            }
            for column in ("pass_step", "pass_rows", "factors", "pass_precision", "extents"):
                tensor = f"slots/{name}/{column}"
                pieces[column] = [parts[i][tensor] for i in numbers if tensor in parts[i]]
            for tag in run.tags:
                pieces[tag] = [parts[i].decoded(name, tag) for i in numbers]
            for column, arrays in pieces.items():
                whole = np.concatenate(arrays) if arrays else np.empty(0)
                columns[name, last, column] = whole.tobytes()
    return columns


def answers(memory: dualform.Memory, model: torch.nn.Module) -> dict[str, Any]:
    """Some of everything that can be asked."""
    found: dict[str, Any] = {}
    layers = Run(memory.path).layers
    views = {"without": memory.without(label=1), "until": memory.until(memory.steps * 2 // 3)}
    for name in memory.layers:
        layer = layers[name]
        spotlight = memory.attend({name: torch.linspace(-1, 1, 2 * layer.d_in).reshape(2, -1)})[name]
        found |= {
            f"{name}: top": spotlight.top(5).to_dict(),
            f"{name}: top per id": spotlight.top(3, per="id").to_dict(),
            f"{name}: total": spotlight.total(by="label").to_dict(),
            f"{name}: sizes": spotlight.total(by="label", absolute=True).to_dict(),
            f"{name}: timeline": spotlight.timeline(3).to_dict(),
            f"{name}: output": spotlight.output().tolist(),
            f"{name}: contribution": spotlight.contribution(torch.ones(layer.d_out)).top(3).to_dict(),
        }
    for view, of in views.items():
        found |= {f"{view}: {name}": tensor.tolist() for name, tensor in of.model(model).named_parameters()}
    muted = memory.group_weights(by="label").model(model, without=[0])
    found |= {f"muted: {name}": tensor.tolist() for name, tensor in muted.named_parameters()}
    return found


def totals(found: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the answers that do not say which slots come first, which rounding may decide."""
    return {name: answer for name, answer in found.items() if ": top" not in name and ": contribution" not in name}


def assert_close(found: Any, expected: Any, tolerance: float, where: str = "") -> None:
    """Numbers within a tolerance, relative to the largest of their list; everything else equal."""
    assert type(found) is type(expected), where
    if isinstance(found, Mapping):
        assert [*found] == [*expected], where
        for name in found:
            assert_close(found[name], expected[name], tolerance, f"{where} {name}")
        return
    numbers = np.array(expected)
    if numbers.dtype.kind != "f":
        assert found == expected, where
        return
    np.testing.assert_allclose(
        np.array(found), numbers, rtol=tolerance, atol=tolerance * np.abs(numbers).max(initial=0), err_msg=where
    )

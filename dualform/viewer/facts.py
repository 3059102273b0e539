"""The run at a glance: `run`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dualform.viewer import code
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.passages import example

_RUNS, _RESULTS = "runs", "results.json"  # an experiment keeps EXPERIMENT/runs/NAME beside its results


def answer(exhibit: Exhibit, per: list[str]) -> dict[str, Any]:
    memory, classes = exhibit.memory, exhibit.classes
    summary = memory.summary()
    kept = f"keys summed by {memory.merged_by}" if memory.merged_by else "keys"
    stored = "keys and values" if summary["storage"]["values"] else kept
    return {
        "name": _name(memory.path.resolve()),
        "path": str(memory.path),
        **{name: summary[name] for name in ("created", "software", "steps", "bytes", "ended", "optimizers", "tags")},
        "stored": f"{stored} in {summary['storage']['dtype']}",
        "layers": [{"name": name, **about} for name, about in summary["layers"].items()],
        "snapshots": summary["snapshots"],
        "kind": exhibit.kind,
        "model": exhibit.model,
        "image": None if exhibit.pictures is None else {"shape": list(exhibit.pictures.shape)},
        "classes": [asdict(one) for one in classes.every],
        "tasks": [asdict(task) for task in classes.tasks],
        "outputs": _output_names(exhibit),
        "inputs": _inputs(exhibit),
        "per": per,
        "cannot": exhibit.cannot,
        "missing": [{"what": what, "do": instead} for what, instead in exhibit.missing.items()],
        "python": code.loaded(exhibit, "print(memory)", "memory.summary()"),
        "example": None if exhibit.text is None else example(exhibit.text),
    }


def _name(path: Path) -> str:
    """Of the run's directory; of one among others of an experiment, with the experiment's before it."""
    experiment = path.parent.parent
    if path.parent.name != _RUNS or not (experiment / _RESULTS).is_file() or experiment.name == path.name:
        return path.name
    return f"{experiment.name}/{path.name}"


def _output_names(exhibit: Exhibit) -> dict[str, list[str]] | None:
    """Names of the model's outputs, by task; numbers where they have none."""
    if exhibit.outputs is None:
        return None
    count = exhibit.outputs.probabilities.shape[1]
    numbers = [str(number) for number in range(count)]
    named = {task: [*names[:count], *numbers[len(names) :]] for task, names in exhibit.classes.outputs.items()}
    return named or {"": numbers}


def _inputs(exhibit: Exhibit) -> dict[str, Any] | None:
    if exhibit.inputs is None:
        return None
    accuracy = None if exhibit.outputs is None else exhibit.outputs.accuracy
    return {"count": len(exhibit.inputs), "labelled": exhibit.inputs.labels is not None, "accuracy": accuracy}

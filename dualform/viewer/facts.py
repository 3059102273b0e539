"""The run at a glance, `run`, and how exact it is."""

from dataclasses import asdict
from typing import Any

from dualform.viewer import code
from dualform.viewer.jobs import Progress
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.passages import example_prompt

_RUNS, _RESULTS = "runs", "results.json"  # an experiment keeps EXPERIMENT/runs/NAME beside its results


def answer(run: OpenedRun, per: list[str], no_suspects: str | None) -> dict[str, Any]:
    """Describe a run.

    Args:
        run: The run.
        per: Tags over which visits can be summed.
        no_suspects: Why suspect labels cannot be told, if they cannot.
    """
    memory, classes = run.memory, run.classes
    path = memory.path.resolve()
    experiment = path.parent.parent
    is_kept = path.parent.name == _RUNS and (experiment / _RESULTS).is_file() and experiment.name != path.name
    summary = memory.summary()
    keys = f"keys summed by {memory.merged_by}" if memory.merged_by else "keys"
    stored = "keys and values" if summary["storage"]["values"] else keys
    accuracy = None if run.outputs is None else run.outputs.accuracy
    inputs = None
    if run.inputs is not None:
        inputs = {"count": len(run.inputs), "labelled": run.inputs.labels is not None, "accuracy": accuracy}
    return {
        "name": f"{experiment.name}/{path.name}" if is_kept else path.name,
        "path": str(memory.path),
        **{name: summary[name] for name in ("created", "software", "steps", "bytes", "ended", "optimizers", "tags")},
        "stored": f"{stored} in {summary['storage']['dtype']}",
        "coverage": {"text": str(memory.coverage), "attributed": memory.coverage.attributed},
        "notes": memory.notes,
        "layers": [{"name": name, **about} for name, about in summary["layers"].items()],
        "snapshots": summary["snapshots"],
        "kind": run.kind,
        "model": run.model,
        "image": None if run.pictures is None else {"shape": list(run.pictures.shape)},
        "classes": [asdict(entry) for entry in classes.entries],
        "tasks": [asdict(task) for task in classes.tasks],
        "outputs": _output_names(run),
        "inputs": inputs,
        "per": per,
        "cannot": run.cannot | ({} if no_suspects is None else {"suspects": no_suspects}),
        "cannot_train": run.cannot_train,
        "missing": [{"what": what, "do": instead} for what, instead in run.missing.items()],
        "python": code.loaded(run, "print(memory)", "memory.summary()"),
        "example": None if run.text is None else example_prompt(run.text),
    }


def certificate(run: OpenedRun, progress: Progress) -> dict[str, Any]:
    """Measure how exact a run is."""
    layers = run.memory.layers
    measured = run.memory.verify(lambda layer: progress(layers.index(layer) / len(layers)))
    return measured.to_dict() | {"python": code.loaded(run, "print(memory.verify())")}


def _output_names(run: OpenedRun) -> dict[str, list[str]] | None:
    """Return the names of the model's outputs, by task; numbers where they have none."""
    if run.outputs is None:
        return None
    count = run.outputs.probabilities.shape[1]
    numbers = [str(number) for number in range(count)]
    named = {task: [*names[:count], *numbers[len(names) :]] for task, names in run.classes.outputs.items()}
    return named or {"": numbers}

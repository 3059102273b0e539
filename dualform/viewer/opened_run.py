"""A run opened to be shown: with its model, its inputs and its text, as far as they can be had.

    run = open_run("runs/mnist", Companions(model="my_project:network"))
    run.missing                  # what could be shown if more were named

What the user named has to be there, or it raises; what only the run names may be missing, and is then noted.
No code is imported but this package's own and what the user named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from dualform import Memory, load
from dualform.companions import importable, make, make_own, named_recipe, own_file, own_inputs, own_model, own_recipe
from dualform.errors import DualformError, QueryError, Refused
from dualform.inputs import Inputs, read_inputs
from dualform.text import Text
from dualform.viewer.classes import Classes, output_names
from dualform.viewer.drawing import DrawingConverter
from dualform.viewer.images import Pictures, Shape
from dualform.viewer.outputs import Outputs

POSITION = "position"
_A_LOOP = "this run was recorded from a loop, which cannot be run again: train it by a dualform.Recipe"
_SAVE_TEXT = "save the training text beside it with dualform.text.Text.save, and name it in about"


@dataclass(frozen=True)
class Companions:
    """What the user says goes with a run; None stands for what the run itself names."""

    model: str | None = None
    inputs: Path | None = None
    class_names: tuple[str, ...] | None = None
    image_shape: Shape | None = None
    recipe: str | None = None


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A memory and what goes with it. Made by `open_run`."""

    memory: Memory
    companions: Companions
    classes: Classes
    model: str | None  # its import path
    network: nn.Module | None  # as the run ends, in eval mode
    inputs: Inputs | None
    pictures: Pictures | None
    drawing: DrawingConverter | None
    text: Text | None
    outputs: Outputs | None  # of the network, for all inputs
    missing: dict[str, str]  # what could not be had, and what to do about it
    cannot: dict[str, str]  # what this run has no answer to, and why
    cannot_train: str | None  # why it cannot be trained again, and how to have that; None: it can

    @property
    def kind(self) -> str:
        """What inputs are."""
        return "text" if self.text is not None else "images" if self.pictures is not None else "rows"

    def task_of(self, index: int) -> str | None:
        """Return the task of an input; None if there are several and it is not known."""
        tasks = [task.name for task in self.classes.tasks]
        if self.inputs is not None and self.inputs.tasks is not None:
            names = [name for name in self.classes.outputs if name] or tasks
            number = int(self.inputs.tasks[index])
            return names[number] if 0 <= number < len(names) else None
        return tasks[0] if len(tasks) == 1 else None

    def class_of(self, index: int) -> int | None:
        """Return the number of an input's true class."""
        if self.inputs is None or self.inputs.labels is None:
            return None
        return self.classes.number(self.task_of(index), int(self.inputs.labels[index]))


def open_run(path: str | Path, companions: Companions | None = None) -> OpenedRun:
    """Open a run for the viewer; reads its inputs and runs its model over them once.

    Args:
        path: The run's directory.
        companions: What the user says goes with it; raises if that cannot be had.
    """
    chosen = companions or Companions()
    memory, missing, cannot = load(path), dict[str, str](), dict[str, str]()
    memory, cannot_train = _with_recipe(memory, chosen)
    model, network, text, inputs, outputs, drawing = chosen.model, None, None, None, None, None
    with _noted(missing, "model", required=chosen.model is not None):
        model = chosen.model or own_model(memory)
        network = memory.model(make(importable(model)) if chosen.model else make_own(memory)).eval()
    if "text" in memory.about:
        with _noted(missing, "text"):
            text = Text.load(own_file(memory, "text", _SAVE_TEXT))
    if text is None or chosen.inputs:
        with _noted(missing, "inputs", required=chosen.inputs is not None):
            source = chosen.inputs or own_inputs(memory)
            known = read_inputs(source)
            if known.fault or not len(known):
                raise QueryError(f"{source} {known.fault or 'holds no inputs'}")
            inputs = known
    shape, own = chosen.image_shape, memory.about.get("image_shape")
    if not shape and isinstance(own, list) and len(own) == 2 and all(type(side) is int and side > 0 for side in own):
        shape = own[0], own[1]
    pictures = None if inputs is None else Pictures.of(inputs, shape)
    if network is not None and inputs is not None:
        with _noted(cannot, "predict"):
            outputs = Outputs.of(network, inputs)
    with _noted(cannot, "draw"):
        if pictures is None or inputs is None or outputs is None:
            raise Refused("drawing needs a model that takes images")
        drawing = DrawingConverter.of(pictures, inputs)
    classes = Classes.of(memory, output_names(memory.about, chosen.class_names))
    run = OpenedRun(
        memory, chosen, classes, model, network, inputs, pictures, drawing, text, outputs, missing, cannot,
        cannot_train,
    )  # fmt: skip
    _note_limits(run)
    return run


def _with_recipe(memory: Memory, chosen: Companions) -> tuple[Memory, str | None]:
    """Open a run with the recipe that the user or the run names; also return why that cannot be, if it cannot."""
    if memory.summary()["recipe"] is None and chosen.recipe is None:
        return memory, _A_LOOP
    reasons: dict[str, str] = {}
    with _noted(reasons, "recipe", required=chosen.recipe is not None):
        recipe = named_recipe(importable(chosen.recipe)) if chosen.recipe else own_recipe(memory)
        memory = load(memory.path, recipe=recipe)
    return memory, reasons.get("recipe")


@contextmanager
def _noted(notes: dict[str, str], what: str, *, required: bool = False) -> Iterator[None]:
    """Note why something cannot be had, and go on without it unless it is required."""
    try:
        yield
    except DualformError as error:
        if required:
            raise
        notes[what] = str(error)


def _note_limits(run: OpenedRun) -> None:
    """Note what the page offers and this run has no answer to, and images that could be shown if they were saved."""
    memory, missing, cannot, merged = run.memory, run.missing, run.cannot, run.memory.merged_by
    if run.network is None:
        cannot["spotlight"] = f"this needs the model: {missing.get('model', 'it is not known')}"
    elif run.inputs is None and run.text is None:
        cannot["spotlight"] = f"this needs inputs: {missing.get('inputs', 'there are none')}"
    if "spotlight" in cannot:
        cannot["predict"] = cannot["spotlight"]
    if not memory.summary()["storage"]["values"]:
        how = f"merge={merged!r}" if merged else "values=False"
        cannot["mute"] = f"this run holds keys only (it was recorded with {how}): nothing can be muted"
    elif "predict" in cannot:
        cannot["mute"] = cannot["predict"]
    if merged:
        cannot["time"] = f"this run holds sums over all visits to the same {merged}: no training time"
    if run.text is not None and POSITION not in memory.tags:
        cannot["spotlight"] = f"the run has no tag {POSITION!r}: record it with recorder.tag({POSITION}=...)"
    if run.inputs is not None and run.pictures is None and not _are_tokens(run.inputs):
        missing["images"] = (
            "save images beside the inputs with dualform.inputs.save_inputs(run, inputs=..., images=..., "
            "training_images=...), or pass --image-shape HEIGHTxWIDTH if inputs are pixels"
        )
    if run.pictures is not None and (run.pictures.trainings is None or memory.tags.get("id") != "int"):
        missing["training images"] = (
            "record with recorder.tag(id=...), the number of each training example, and save the images they are "
            "rows of with dualform.inputs.save_inputs(run, inputs=..., training_images=...)"
        )


def _are_tokens(inputs: Inputs) -> bool:
    """Return whether inputs are whole numbers beyond those of pixels: there are no images of such."""
    return not inputs.inputs.is_floating_point() and inputs.inputs.dtype != torch.uint8

"""A run made ready to be looked at: with its model, its inputs and its text, as far as they can be had.

    exhibit = open_exhibit("runs/mnist", Named(model="my_project:network"))
    exhibit.missing              # what could be shown if more were named

What the user named has to be there, or it raises; what only the run names may be missing, and is then noted.
No code is imported but this package's own and what the user named.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from dualform import Memory, load
from dualform.companions import importable, make, make_own, own_file, own_inputs, own_model
from dualform.errors import DualformError, QueryError
from dualform.inputs import Inputs, read_inputs
from dualform.text import Text
from dualform.viewer.classes import Classes, names_of
from dualform.viewer.drawing import Pen
from dualform.viewer.images import Pictures, Shape
from dualform.viewer.outputs import Outputs

POSITION = "position"
T = TypeVar("T")


@dataclass(frozen=True)
class Named:
    """What the user named; None: what the run names itself."""

    model: str | None = None
    inputs: Path | None = None
    class_names: tuple[str, ...] | None = None
    image_shape: Shape | None = None


@dataclass
class _Notes:
    """What could not be had."""

    missing: dict[str, str] = field(default_factory=dict)  # what to do about it
    cannot: dict[str, str] = field(default_factory=dict)  # why

    def try_to(self, what: str, get: Callable[[], T], *, named: bool, instead: str = "") -> T | None:
        """What `get` gets; if it fails for what the user did not name, a note of the reason."""
        try:
            return get()
        except DualformError as error:
            if named:
                raise
            self.missing[what] = f"{error}{instead}"
            return None


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A memory and what goes with it."""

    memory: Memory
    named: Named
    classes: Classes
    model: str | None  # its import path
    network: nn.Module | None  # as the run ends, in eval mode
    inputs: Inputs | None
    pictures: Pictures | None
    pen: Pen | None
    text: Text | None
    outputs: Outputs | None  # of the network, for all inputs
    missing: dict[str, str]
    cannot: dict[str, str]

    @property
    def kind(self) -> str:
        """What inputs are."""
        return "text" if self.text is not None else "images" if self.pictures is not None else "rows"


def open_exhibit(path: str | Path, named: Named | None = None) -> Exhibit:
    """Open a run for the viewer; reads its inputs and runs its model over them once."""
    named = named or Named()
    memory, notes = load(path), _Notes()
    model = named.model or notes.try_to("model", lambda: own_model(memory), named=False)
    network = _network(memory, model, named, notes)
    text = _text(memory, notes) if "text" in memory.about else None
    inputs = None if text is not None and not named.inputs else _inputs(memory, named, notes)
    pictures = None if inputs is None else Pictures.of(inputs, named.image_shape or _shape(memory.about))
    outputs = _outputs(network, inputs, notes)
    pen = _pen(pictures, inputs, outputs, notes)
    _note_what_cannot_be(memory, network, inputs, text, notes)
    classes = Classes.of(memory, names_of(memory.about, named.class_names))
    _note_missing_images(memory, inputs, pictures, notes)
    return Exhibit(
        memory, named, classes, model, network, inputs, pictures, pen, text, outputs, notes.missing, notes.cannot
    )


def _network(memory: Memory, model: str | None, named: Named, notes: _Notes) -> nn.Module | None:
    if model is None:
        return None

    def made() -> nn.Module:
        found = make(importable(model)) if named.model else make_own(memory)
        return memory.model(found).eval()

    return notes.try_to("model", made, named=named.model is not None)


def _inputs(memory: Memory, named: Named, notes: _Notes) -> Inputs | None:
    def found() -> Inputs:
        path = named.inputs or own_inputs(memory)
        inputs = read_inputs(path)
        if inputs.fault:
            raise QueryError(f"{path} {inputs.fault}")
        if not len(inputs):
            raise QueryError(f"{path} holds no inputs")
        return inputs

    return notes.try_to("inputs", found, named=named.inputs is not None)


def _text(memory: Memory, notes: _Notes) -> Text | None:
    instead = "save the training text beside it with dualform.text.Text.save, and name it in about"
    return notes.try_to("text", lambda: Text.load(own_file(memory, "text", instead)), named=False)


def _outputs(network: nn.Module | None, inputs: Inputs | None, notes: _Notes) -> Outputs | None:
    if network is None or inputs is None:
        return None
    try:
        return Outputs.of(network, inputs)
    except QueryError as error:
        notes.cannot["predict"] = str(error)
        return None


def _pen(pictures: Pictures | None, inputs: Inputs | None, outputs: Outputs | None, notes: _Notes) -> Pen | None:
    if pictures is None or inputs is None or outputs is None:
        notes.cannot["draw"] = "drawing needs a model that takes images"
        return None
    try:
        return Pen.of(pictures, inputs)
    except DualformError as error:
        notes.cannot["draw"] = str(error)
        return None


def _note_missing_images(memory: Memory, inputs: Inputs | None, pictures: Pictures | None, notes: _Notes) -> None:
    if inputs is not None and pictures is None:
        notes.missing["images"] = (
            "save images beside the inputs with dualform.inputs.save_inputs(run, inputs=..., images=..., "
            "training_images=...), or pass --image-shape HEIGHTxWIDTH if inputs are pixels"
        )
    if pictures is not None and (pictures.trainings is None or memory.tags.get("id") != "int"):
        notes.missing["training images"] = (
            "record with recorder.tag(id=...), the number of each training example, and save the images they are "
            "rows of with dualform.inputs.save_inputs(run, inputs=..., training_images=...)"
        )


def _note_what_cannot_be(
    memory: Memory, network: nn.Module | None, inputs: Inputs | None, text: Text | None, notes: _Notes
) -> None:
    """Of what the page offers, what this run has no answer to."""
    about, merged = memory.summary(), memory.merged_by
    if network is None:
        notes.cannot["spotlight"] = f"this needs the model: {notes.missing.get('model', 'it is not known')}"
    elif inputs is None and text is None:
        notes.cannot["spotlight"] = f"this needs inputs: {notes.missing.get('inputs', 'there are none')}"
    if "spotlight" in notes.cannot:
        notes.cannot["predict"] = notes.cannot["spotlight"]
    if not about["storage"]["values"]:
        how = f"merge={merged!r}" if merged else "values=False"
        notes.cannot["mute"] = f"this run holds keys only (it was recorded with {how}): nothing can be muted"
    elif "predict" in notes.cannot:
        notes.cannot["mute"] = notes.cannot["predict"]
    if merged:
        notes.cannot["time"] = f"this run holds sums over all visits to the same {merged}: no training time"
    if text is not None and POSITION not in memory.tags:
        notes.cannot["spotlight"] = f"the run has no tag {POSITION!r}: record it with recorder.tag({POSITION}=...)"


def _shape(about: dict[str, Any]) -> Shape | None:
    found = about.get("image_shape")
    fits = isinstance(found, list) and len(found) == 2 and all(type(side) is int and side > 0 for side in found)
    return (found[0], found[1]) if fits and found is not None else None

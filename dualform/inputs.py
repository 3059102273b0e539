"""Test inputs in a file, with what is known of them: labels, tasks, and images as people see them.

    save_inputs("runs/mnist", inputs=images, labels=labels, images=raw, training_images=raw_train)
    read_inputs(Path("runs/mnist/inputs.safetensors")).labels

The file is `inputs.safetensors` in the run's directory, and holds nothing but numbers. Name it when recording
(`about={"inputs": "inputs.safetensors"}`), or when asking (`--input`). Of the tensors only `inputs` has to be there.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dualform.errors import QueryError, UnknownName

INPUTS = "inputs.safetensors"


@dataclass(frozen=True)
class Inputs:
    """Test inputs as the model takes them, one a row; what is not known is None."""

    inputs: Tensor  # (n, ...)
    labels: Tensor | None = None  # (n,): number of the right output
    tasks: Tensor | None = None  # (n,): number of the task among the run's class names
    images: Tensor | None = None  # (n, pixels) or (n, height, width)
    training_images: Tensor | None = None  # the same, of the training set: the tag `id` is their row

    def __len__(self) -> int:
        return len(self.inputs)

    def row(self, index: int) -> Tensor:
        """One input as a batch of its own."""
        if not 0 <= index < len(self):
            raise QueryError(f"there is no input {index}; there are {len(self)}, counted from 0")
        return self.inputs[index : index + 1]

    @property
    def fault(self) -> str | None:
        """Why these do not go together, if they do not. Who needs the inputs alone need not care."""
        for name in ("labels", "tasks"):
            found: Tensor | None = getattr(self, name)
            if found is not None and (found.shape != (len(self),) or found.is_floating_point() or found.is_complex()):
                return (
                    f"has {name} of shape {tuple(found.shape)}, {found.dtype}: whole numbers, one an input, are meant"
                )
        if self.images is not None and (self.images.dim() < 2 or len(self.images) != len(self)):
            return f"has {tuple(self.images.shape)} images for {len(self)} inputs"
        if self.training_images is not None and self.training_images.dim() < 2:
            return f"has training images of shape {tuple(self.training_images.shape)}: they are (n, pixels)"
        return None


def save_inputs(
    run: str | Path,
    *,
    inputs: Tensor,
    labels: Tensor | None = None,
    tasks: Tensor | None = None,
    images: Tensor | None = None,
    training_images: Tensor | None = None,
) -> Path:
    """Write what later questions to a run need into its directory."""
    found = Inputs(inputs, labels, tasks, images, training_images)
    if found.fault:
        raise QueryError(f"cannot save these inputs: what would be saved {found.fault}")
    tensors = {one.name: getattr(found, one.name) for one in fields(found)}
    path = Path(run) / INPUTS
    save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def read_inputs(path: Path) -> Inputs:
    """Inputs from a .npy or .safetensors file; of tensors with other names, a single one will do."""
    readers = {".npy": _read_npy, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise QueryError(f"{path} is neither .npy nor .safetensors; save the inputs as one of them")
    if not path.is_file():
        raise QueryError(f"there is no file {path}")
    found = readers[path.suffix](path)
    if not found.inputs.dim():
        raise QueryError(f"{path} holds a single number; inputs have a first dimension that counts them")
    return found


def _read_npy(path: Path) -> Inputs:
    try:
        return Inputs(torch.from_numpy(np.lib.format.open_memmap(path, mode="r").copy()))
    except (ValueError, TypeError) as error:
        raise QueryError(f"cannot read {path} as an array of numbers: {error}") from error


def _read_safetensors(path: Path) -> Inputs:
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if "inputs" not in names and len(names) != 1:
                raise UnknownName(f"tensor in {path} called", "inputs", names)
            if "inputs" not in names:
                return Inputs(file.get_tensor(names[0]))
            return Inputs(**{one.name: file.get_tensor(one.name) for one in fields(Inputs) if one.name in names})
    except SafetensorError as error:
        raise QueryError(f"cannot read {path}: {error}") from error

"""Save and read test inputs, with their labels, tasks and images.

    save_inputs("runs/mnist", inputs=images, labels=labels, images=raw, training_images=raw_train)
    read_inputs(Path("runs/mnist/inputs.safetensors")).labels

The file is `inputs.safetensors` in the run's directory and holds tensors only. Name it when recording
(`about={"inputs": "inputs.safetensors"}`), or when asking (`--input`). Only the tensor `inputs` is required.
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
    """Test inputs as the model takes them, and what is known about them.

    Attributes:
        inputs: one a row, (n, ...).
        labels: number of the right output, (n,).
        tasks: number of the task among the run's class names, (n,).
        images: inputs as people see them, (n, pixels) or (n, height, width).
        training_images: images of the training set; the tag `id` is their row.
    """

    inputs: Tensor
    labels: Tensor | None = None
    tasks: Tensor | None = None
    images: Tensor | None = None
    training_images: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def row(self, index: int) -> Tensor:
        """Return one input as a batch of one row."""
        if not 0 <= index < len(self):
            raise QueryError(f"no input {index}; choose from 0 to {len(self) - 1}")
        return self.inputs[index : index + 1]

    @property
    def fault(self) -> str | None:
        """Why the tensors do not fit together, or None if they do. It does not matter to who needs the inputs alone."""
        for name in ("labels", "tasks"):
            column: Tensor | None = getattr(self, name)
            if column is None:
                continue
            if column.shape != (len(self),) or column.is_floating_point() or column.is_complex():
                return f"has {name} of shape {tuple(column.shape)}, {column.dtype}; expected a whole number an input"
        if self.images is not None and (self.images.dim() < 2 or len(self.images) != len(self)):
            return f"has {tuple(self.images.shape)} images for {len(self)} inputs"
        if self.training_images is not None and self.training_images.dim() < 2:
            return f"has training images of shape {tuple(self.training_images.shape)}; expected (n, pixels)"
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
    """Save test inputs into the directory of a run, for later questions.

        save_inputs("runs/mnist", inputs=images, labels=labels)

    Name the file when recording: `about={"inputs": "inputs.safetensors"}`.

    Args:
        run: directory of the run.
        inputs: as the model takes them, one a row, (n, ...).
        labels: number of the right output for each input, (n,).
        tasks: number of the task of each input among the run's class names, (n,).
        images: inputs as people see them, (n, pixels) or (n, height, width).
        training_images: images of the training set; the tag `id` is their row.

    Returns:
        Path of the file.
    """
    rows = Inputs(inputs, labels, tasks, images, training_images)
    if rows.fault:
        raise QueryError(f"cannot save these inputs: what would be saved {rows.fault}")
    tensors = {field.name: getattr(rows, field.name) for field in fields(rows)}
    path = Path(run) / INPUTS
    save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def read_inputs(path: Path) -> Inputs:
    """Read inputs from a file.

        read_inputs(Path("runs/mnist/inputs.safetensors")).labels

    A .safetensors file holds a tensor called `inputs`, or a single tensor of any name; a .npy file the inputs alone.

    Args:
        path: a .npy or .safetensors file.
    """
    if path.suffix not in (".npy", ".safetensors"):
        raise QueryError(f"{path} is neither .npy nor .safetensors; save the inputs as one of them")
    if not path.is_file():
        raise QueryError(f"there is no file {path}")
    try:
        if path.suffix == ".npy":
            rows = Inputs(torch.from_numpy(np.lib.format.open_memmap(path, mode="r").copy()))
        else:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                if "inputs" not in names and len(names) != 1:
                    raise UnknownName(f"tensor in {path} called", "inputs", names)
                known = {field.name: field.name for field in fields(Inputs) if field.name in names}
                stored = known if "inputs" in names else {"inputs": names[0]}
                rows = Inputs(**{field: file.get_tensor(name) for field, name in stored.items()})
    except (ValueError, TypeError) as error:
        raise QueryError(f"cannot read {path} as an array of numbers: {error}") from error
    except SafetensorError as error:
        raise QueryError(f"cannot read {path}: {error}") from error
    if not rows.inputs.dim():
        raise QueryError(f"{path} holds a single number; expected an array with a row for each input")
    if len(rows) and not rows.inputs.numel():
        raise QueryError(f"{path} holds {len(rows):,} inputs without a number; expected some for each input")
    return rows

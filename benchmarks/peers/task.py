"""The task that is the same for all: a trained network, its training images, and test images to be asked about.

    write(directory, data, Settings.of(quick=True))     # once, by the parent
    task = Task.read(directory)                         # in each peer's own process
    task.model(), task.images, task.questions           # trained weights, (examples, 784), (questions, 784)

The network is the MLP of `benchmarks.recording` (784-800-800-10). What the training leaves for the peers is in
the same directory: the model, a checkpoint after every turn of steps, and the run that dualform recorded.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.recording import Data, network, noise
from dualform.datasets import image_catalogue
from dualform.datasets.images import standardised

LAYERS = ("0", "2", "4")  # the linear layers of `network`, by name
LAST = LAYERS[-1]
SPARE = 10  # test images beyond the hundred: the first question, and single ones after it

# What the training leaves in the task's directory.
RUN = "run"  # dualform's
CHECKPOINTS = "checkpoints"  # TracIn's; the last is the trained model
COSTS = "training.json"

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """Sizes; those of one peer only begin with its name."""

    examples: int = 60_000
    steps: int = 3000
    turn: int = 500  # steps between checkpoints: about an epoch
    questions: int = 100
    k: int = 10
    patience: float = 4.0  # seconds after which a measurement is not repeated
    kronfluence_lambda_examples: int = 2000
    kronfluence_rank: int = 32
    captum_projection: int = 1000
    trak_projection: int = 512
    trak_examples: int = 3000  # of the variant with all layers
    dattri_projection: int = 1024

    @classmethod
    def of(cls, quick: bool) -> "Settings":
        if not quick:
            return cls()
        return cls(
            examples=6000,
            steps=180,
            turn=30,
            patience=1.0,
            kronfluence_lambda_examples=32,
            trak_projection=64,
            trak_examples=384,
        )


class Rows(Dataset[Pair]):
    """Images and classes; a whole batch is fetched by one indexing, so that no peer waits for Python's loop."""

    def __init__(self, images: Tensor, classes: Tensor) -> None:
        self.images, self.classes = images, classes

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, row: int) -> Pair:
        return self.images[row], self.classes[row]

    def __getitems__(self, rows: Sequence[int]) -> Pair:
        chosen = torch.tensor(rows)
        return self.images[chosen], self.classes[chosen]

    def loader(self, batch: int) -> DataLoader[Pair]:
        """Return a loader of batches, in order."""
        return DataLoader(self, batch_size=batch, collate_fn=as_it_is)


def as_it_is(batch: Any) -> Any:
    """Return what `Rows` fetched: it is a batch already."""
    return batch


def images_of(directory: Path | None, settings: Settings) -> tuple[Data, Tensor]:
    """Training data, and test images to be asked about: MNIST, or noise of its shape."""
    asked = settings.questions + SPARE
    if directory is None:
        everything = noise(settings.examples + asked)
        images, questions = everything.images.split([settings.examples, asked])
        return Data(images, everything.labels[: settings.examples], everything.source), questions
    mnist = image_catalogue.load("mnist", directory)
    raw, labels = mnist.train.raw[: settings.examples], mnist.train.labels[: settings.examples]
    return Data(standardised(raw, by=raw), labels, "mnist"), standardised(mnist.test.raw[:asked], by=raw)


def write(directory: Path, data: Data, questions: Tensor, settings: Settings) -> None:
    """Put the data where every process of the comparison finds them."""
    tensors = {"images": data.images, "labels": data.labels, "questions": questions}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "data.safetensors")
    (directory / "settings.json").write_text(json.dumps(asdict(settings)))


@dataclass(frozen=True)
class Task:
    """What a peer gets. The checkpoints and the run exist once the training is done."""

    directory: Path
    settings: Settings
    images: Tensor  # (examples, 784)
    labels: Tensor  # (examples,)
    questions: Tensor  # (questions and spare ones, 784)

    @classmethod
    def read(cls, directory: Path) -> "Task":
        """Read what `write` has written."""
        settings = Settings(**json.loads((directory / "settings.json").read_text()))
        tensors = load_file(directory / "data.safetensors")
        return cls(directory, settings, tensors["images"], tensors["labels"], tensors["questions"])

    @property
    def checkpoints(self) -> list[Path]:
        """Return the checkpoints in the order of training."""
        return sorted((self.directory / CHECKPOINTS).glob("*.pt"))

    def model(self) -> nn.Sequential:
        """Return a copy of the trained network."""
        model = network()
        model.load_state_dict(torch.load(self.checkpoints[-1]))
        return model.eval()

    @cached_property
    def predicted(self) -> Tensor:
        """Return the predicted classes, right or wrong, which the questions are about."""
        with torch.no_grad():
            classes: Tensor = self.model()(self.questions).argmax(dim=1)
        return classes

    def rows(self, first: int | None = None) -> Rows:
        """Return the training set, or its first examples."""
        return Rows(self.images[:first], self.labels[:first])

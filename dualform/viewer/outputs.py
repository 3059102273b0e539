"""What a model says of inputs, as probabilities of its outputs.

outputs = Outputs.of(network, inputs)
outputs.predicted[12], outputs.probabilities[12]
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dualform.companions import in_precision_of, output_for
from dualform.errors import QueryError
from dualform.inputs import Inputs

MAX_INPUTS = 20_000  # that the page lists
_BATCH_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model says of the first inputs, at most 20,000."""

    probabilities: Tensor  # (n, outputs)
    labels: Tensor | None  # (n,)

    @classmethod
    def of(cls, network: nn.Module, inputs: Inputs) -> "Outputs":
        batches = inputs.inputs[:MAX_INPUTS].split(_BATCH_ROWS)
        labels = None if inputs.labels is None else inputs.labels[:MAX_INPUTS]
        return cls(torch.cat([class_probabilities(network, batch) for batch in batches]), labels)

    @cached_property
    def predicted(self) -> Tensor:
        """(n,)"""
        return self.probabilities.argmax(dim=1)

    @cached_property
    def right(self) -> Tensor | None:
        """(n,): whether the prediction is the label; None without labels."""
        return None if self.labels is None else self.predicted == self.labels

    @property
    def accuracy(self) -> float | None:
        return None if self.right is None else float(self.right.float().mean())


def class_probabilities(network: nn.Module, rows: Tensor) -> Tensor:
    """Return the probabilities of a classifier's outputs, for inputs as they are stored: (rows, outputs)."""
    output = output_for(network, in_precision_of(network, rows))
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(rows) or output.shape[1] < 2:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise QueryError(f"probabilities are shown of models with an output for each class, this one says {what}")
    return torch.softmax(output.float(), dim=1)


def token_probabilities(network: nn.Module, prompts: Tensor) -> Tensor:
    """Return the probability of each token after prompts, (prompts, time): (prompts, vocabulary)."""
    output = output_for(network, prompts)
    logits: Tensor = output[0] if isinstance(output, tuple) else output  # (prompts, time, vocabulary)
    return torch.softmax(logits[:, -1].float(), dim=1)

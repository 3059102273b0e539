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

MOST = 20_000  # inputs that the page lists
_BATCH = 1000


@dataclass(frozen=True, eq=False)
class Outputs:
    """Of the first inputs, at most 20,000."""

    probabilities: Tensor  # (n, outputs)
    labels: Tensor | None  # (n,)

    @classmethod
    def of(cls, network: nn.Module, inputs: Inputs) -> "Outputs":
        portions = inputs.inputs[:MOST].split(_BATCH)
        labels = None if inputs.labels is None else inputs.labels[:MOST]
        return cls(torch.cat([probabilities(network, portion) for portion in portions]), labels)

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


def probabilities(network: nn.Module, rows: Tensor) -> Tensor:
    """Of the outputs of a classifier, for inputs as they are stored: (rows, outputs)."""
    said = output_for(network, in_precision_of(network, rows))
    if not isinstance(said, Tensor) or said.dim() != 2 or len(said) != len(rows) or said.shape[1] < 2:
        what = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
        raise QueryError(f"probabilities are shown of models with an output for each class, this one says {what}")
    found: Tensor = torch.softmax(said.float(), dim=1)
    return found


def next_token_probabilities(network: nn.Module, prompts: Tensor) -> Tensor:
    """Return the probability of each token after prompts, (prompts, time): (prompts, vocabulary)."""
    output = output_for(network, prompts)
    logits: Tensor = output[0] if isinstance(output, tuple) else output  # (prompts, time, vocabulary)
    return torch.softmax(logits[:, -1].float(), dim=1)

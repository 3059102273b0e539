"""Say of the rows of packed sequences which sequence each is of: what their number alone does not tell.

leading = Ragged.of(packed)     # (rows,), as a shape
leading.examples                # (rows,): the number of the sequence in the batch, as it was before it was sorted
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import PackedSequence


class Ragged(tuple[int, ...]):
    """The leading dimensions of rows of sequences that are not of one length: (rows,). Those of each are in order."""

    examples: NDArray[np.int64]
    batch: int  # sequences
    time: int  # rows of the longest

    @classmethod
    def of(cls, packed: PackedSequence) -> "Ragged":
        """Return those of packed sequences."""
        sizes = packed.batch_sizes
        ragged = cls((int(sizes.sum()),))
        ragged.batch, ragged.time = int(sizes[0]), len(sizes)
        order = torch.arange(ragged.batch) if packed.sorted_indices is None else packed.sorted_indices.cpu()
        ragged.examples = torch.cat([order[:size] for size in sizes.tolist()]).numpy()
        return ragged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ragged) and np.array_equal(self.examples, other.examples)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.examples.tobytes())

"""Record nn.Linear: the key is a row of the input, the map the weight itself, and a bias has a key that is always 1."""

from collections.abc import Iterator

from torch import nn

from dualform.kinds.base import Candidate, Kind
from dualform.kinds.trial import linear_by_trial


def _is_linear(module: nn.Linear) -> bool:
    trial = linear_by_trial(module)
    return trial is not None and not trial.transposed


class Linear(Kind):
    """y = W x + b"""

    name = "Linear"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, nn.Linear):
            columns = {"weight": (0, module.in_features), "bias": None}
            obstacle = None
            if isinstance(parent, nn.MultiheadAttention):
                obstacle = "MultiheadAttention uses its weight without calling it"
            elif type(module).forward is not nn.Linear.forward and not _is_linear(module):
                obstacle = f"{type(module).__name__} overrides nn.Linear's forward"
            yield Candidate(name, self, module, module.in_features, module.out_features, columns, obstacle)

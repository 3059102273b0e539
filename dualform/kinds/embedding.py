"""Record nn.Embedding: a linear map of one-hot keys, of which only the place of the 1 is stored.

Its weight has a row, not a column, for each entry of the key.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from dualform.kinds.base import Candidate, Kind, ModuleCall
from dualform.kinds.keys import Keys, OneHot
from dualform.store.schema import KeyLayout, Layer, Use


class Embedding(Kind):
    """y = W[i]"""

    name = "Embedding"
    vectors = False
    may_repeat = False  # a key is smaller than a note of where it was before

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, nn.Embedding):
            width, obstacle = module.num_embeddings, self._obstacle(module)
            yield Candidate(name, self, module, width, module.embedding_dim, {"weight": (0, width)}, obstacle)

    def _obstacle(self, module: nn.Embedding | nn.EmbeddingBag) -> str | None:
        base = nn.Embedding if isinstance(module, nn.Embedding) else nn.EmbeddingBag
        if type(module).forward is not base.forward:
            return f"{type(module).__name__} overrides nn.{base.__name__}'s forward"
        if module.max_norm is not None:
            return "max_norm changes its weight in every forward pass"
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq scales its gradient row by row"
        return None

    def key_layout(self, d_in: int) -> KeyLayout:
        return KeyLayout(1, index=True)

    def key_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.int32

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        return tuple(call.inputs.shape)

    def rows(self, call: ModuleCall) -> Tensor:
        return call.inputs.detach().reshape(-1, 1)

    def errors(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        values, padding = super().errors(call, gradient), cast(nn.Embedding, call.module).padding_idx
        # torch leaves the padding out of the gradient
        return values if padding is None else values.masked_fill(self.rows(call) == padding, 0.0)

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        return nn.functional.one_hot(call.inputs.long(), layer.d_in).float()

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        return (use.width, layer.d_out)

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return parameter.mT

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        return matrix.mT

    def keys(self, layer: Layer, rows: Tensor) -> Keys:
        return OneHot(rows[:, 0], layer.d_in)

    def pair_into(self, vectors: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        return torch.index_select(vectors, 1, rows[:, 0], out=out)

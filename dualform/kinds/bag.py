"""Record nn.EmbeddingBag: each index of a bag is a slot, with the share of the bag's error that its row gets."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from dualform.kinds.base import Candidate, ModuleCall
from dualform.kinds.embedding import Embedding


class EmbeddingBag(Embedding):
    """y = sum over i of a bag of W[i], or their mean"""

    name = "EmbeddingBag"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, nn.EmbeddingBag):
            width, obstacle = module.num_embeddings, self._obstacle(module)
            if module.mode == "max":
                obstacle = "a bag by max has no single map: which rows count depends on the weight"
            yield Candidate(name, self, module, width, module.embedding_dim, {"weight": (0, width)}, obstacle)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        bags = _bags(call)
        return gradient[bags] * _shares(call, bags, len(gradient)).to(gradient)[:, None]

    def errors(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        return self.by_slot(call, gradient.detach())  # shares of padding are 0


def _bags(call: ModuleCall) -> Tensor:
    """Return which bag each index is in."""
    indices, offsets = call.inputs, call.argument(1, "offsets")
    if indices.dim() == 2:
        return torch.arange(len(indices), device=indices.device).repeat_interleave(indices.shape[1])
    places = torch.arange(len(indices), device=indices.device)
    starts = offsets[:-1] if cast(nn.EmbeddingBag, call.module).include_last_offset else offsets
    return torch.searchsorted(starts.contiguous(), places, right=True) - 1


def _shares(call: ModuleCall, bags: Tensor, count: int) -> Tensor:
    """Return what each index counts for in its bag."""
    module, weights = cast(nn.EmbeddingBag, call.module), call.argument(2, "per_sample_weights")
    shares = torch.ones(len(bags), device=bags.device, dtype=torch.float64)
    if weights is not None:
        shares = weights.detach().reshape(-1).double()
    if module.padding_idx is not None:
        shares = shares.masked_fill(call.inputs.reshape(-1) == module.padding_idx, 0.0)
    if module.mode == "mean":
        sizes = torch.zeros(count, device=bags.device, dtype=torch.float64).index_add_(0, bags, shares)
        shares = shares / sizes.clamp(min=1.0)[bags]
    return shares

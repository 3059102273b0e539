"""Record the projections of a dualform.nn.MultiheadAttention: queries, keys and values are one map of its input.

With kdim or vdim, that is a map of [query, key, value] side by side, and each of its three weights a block of it: some
columns, and a third of the rows. As a map, such a weight has zeros in the other rows.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from dualform.errors import QueryError
from dualform.kinds.base import Candidate, Columns, Kind, ModuleCall, OnErrors, OnKeys
from dualform.kinds.hook import WHY_DISABLED
from dualform.nn import MultiheadAttention
from dualform.store.schema import Layer, Use


class Projections(Kind):
    """[q; k; v] = in_proj_weight x + in_proj_bias"""

    name = "Attention"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, MultiheadAttention):
            e, k, v = module.embed_dim, module.kdim, module.vdim
            packed: Columns = {"in_proj_weight": (0, e), "in_proj_bias": None}
            apart: Columns = {
                "q_proj_weight": (0, e), "k_proj_weight": (e, e + k), "v_proj_weight": (e + k, e + k + v),
                "in_proj_bias": None,
            }  # fmt: skip
            d_in, columns = (e, packed) if module.packed else (e + k + v, apart)
            yield Candidate(f"{name}.in_proj".lstrip("."), self, module, d_in, 3 * e, columns, module_name=name)
        elif isinstance(module, nn.MultiheadAttention):
            fused = "torch computes its projections where no hook can see them; replace it with dualform.unfuse(model)"
            yield Candidate(name, self, module, 0, 0, {"in_proj_weight": None}, fused)

    def module_of(self, layer: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
        module = modules.get(layer.rpartition(".")[0])
        if module is not None and not isinstance(module, MultiheadAttention):
            own = "dualform.nn.MultiheadAttention"
            raise QueryError(f"layer {layer!r} was recorded from a {own}: pass dualform.unfuse(model)")
        return module

    def add_hooks(self, module: nn.Module, layer: Layer, on_keys: OnKeys, *, lasting: bool) -> RemovableHandle:
        assert isinstance(module, MultiheadAttention)

        def on_tap(keys: Tensor) -> OnErrors | None:
            return on_keys(ModuleCall(module, keys, keys.dtype, torch.is_grad_enabled()))

        return module.tap(torch.compiler.disable(on_tap, **WHY_DISABLED) if lasting else on_tap)

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        packed = use.columns is None or layer.d_out == 3 * layer.d_in  # else a key has other inputs in it, too
        return super().shape(layer, use) if packed else (layer.d_out // 3, use.width)

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        block, rows = _block(use), use.parameter.shape[0]
        if block is None:
            return super().as_map(use, parameter)
        return F.pad(parameter, (0, 0, block * rows, (2 - block) * rows))

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        block, rows = _block(use), use.parameter.shape[0]
        if block is None:
            return super().from_map(use, matrix)
        return matrix[..., block * rows : (block + 1) * rows, :]


def _block(use: Use) -> int | None:
    """Return which rows of the map are a weight's own: those of queries (0), keys (1) or values (2); None: all."""
    if use.columns is None:
        return None
    (rows, width), start = use.parameter.shape, use.columns[0]
    if start == 0:
        return 0 if rows == width else None
    return 1 if start == rows else 2  # the query's entries come first in a key: as many as a weight has rows

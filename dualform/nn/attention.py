"""Show the linear maps of multi-head attention: torch.nn.MultiheadAttention, with its projections in view.

    handle = attention.tap(lambda keys: print)      # what is projected; its errors are printed

    [q; k; v] = W x + b                             W = in_proj_weight, b = in_proj_bias
    output = out_proj(softmax(q k^T / sqrt(d) + mask) v)        in each head, of d entries

Self-attention makes queries, keys and values of one input by one product. Cross-attention takes two products or three,
each with some rows of W: at the others, errors are 0. With kdim or vdim, W is three matrices, and a key has a place for
each input; of these a product has one, and the others are 0. `out_proj` is called, so that its own hooks see it.

Rows are slots, in the layout of the module's input, (time, batch, d) or (batch, time, d). Inside of the heads tensors
are (batch, heads, time, d).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError

Receive = Callable[[Tensor], None]
Tap = Callable[[Tensor], Receive | None]


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with its projections in view: same arguments, parameters, state dict and results.

    attention = dualform.nn.MultiheadAttention(64, 4, batch_first=True)
    output, weights = attention(x, x, x)
    """

    @property
    def packed(self) -> bool:
        """Whether the weights of queries, keys and values are one parameter: kdim and vdim are embed_dim."""
        return bool(self._qkv_same_embed_dim)

    def tap(self, on_keys: Tap) -> RemovableHandle:
        """Call `on_keys` with what is projected, product by product, in every forward pass, until `handle.remove()`.

        Args:
            on_keys: Takes the keys of one product in the layout and the precision of the module's input: (..., d), or
                (..., embed_dim + kdim + vdim) with separate weights. If it returns a function, the backward pass calls
                that with the errors at queries, keys and values, (..., 3 embed_dim), in the same layout.
        """
        return self.register_forward_hook(_Tapped(on_keys))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what torch.nn.MultiheadAttention computes, and show taps the keys on the way."""
        if query.is_nested or key.is_nested or value.is_nested:
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return self._of_nested(query, key, value, *masks)
        batched, dims = query.dim() == 3, [tensor.dim() for tensor in (query, key, value)]
        if dims not in ([2, 2, 2], [3, 3, 3]):
            raise RuntimeError(f"MultiheadAttention: expected inputs of 3 dimensions, or 2 without a batch, got {dims}")
        if is_causal and attn_mask is None:
            raise RuntimeError("MultiheadAttention: is_causal says what attn_mask is; pass attn_mask, too")
        q, k, v = (self._split(rows, batched) for rows in self._project(query, key, value))
        causal = is_causal and key_padding_mask is None and not need_weights  # then the kernel needs no mask
        padding = key_padding_mask if key_padding_mask is None or batched else key_padding_mask[None]
        mask = None if causal else self._mask(attn_mask, padding, query.dtype, (q, k))
        k, v = self._extended(k, self.bias_k), self._extended(v, self.bias_v)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            of_heads = mask if mask is None or len(mask) == 1 else mask.unflatten(0, q.shape[:2])
            attended = F.scaled_dot_product_attention(q, k, v, of_heads, dropout, causal)
            return self.out_proj(self._joined(attended, batched)), None
        attended, weights = _attend(q, k, v, mask, dropout)
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return self.out_proj(self._joined(attended, batched)), weights if batched else weights.squeeze(0)

    def _of_nested(self, query: Tensor, *others: Any) -> tuple[Tensor, Tensor | None]:
        """Leave nested tensors to torch, which has them for inference only, in one opaque kernel."""
        if any(self._taps()):
            raise RecordingError(
                "dualform.nn.MultiheadAttention cannot show what it projects of nested tensors: "
                "nn.TransformerEncoder(..., enable_nested_tensor=False) makes none, nor does dualform.unfuse(model)"
            )
        return super().forward(query, *others)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Tensor]:
        """Yield queries, keys and values, (..., embed_dim) each: one product for what is made of the same tensor."""
        inputs, taps, size = (query, key, value), list(self._taps()), self.embed_dim
        starts = _offsets([size, self.kdim, self.vdim])  # where each input is in a key, if they have places
        for first, last in _products(inputs, self.packed):
            weight, bias = self._weights(first, last)
            projected = F.linear(inputs[first], weight, bias)
            if taps and _can_be_shown(projected):
                keys = inputs[first].to(projected.dtype)  # as autocast multiplies them
                if not self.packed:
                    keys = F.pad(keys, (starts[first], starts[3] - starts[first + 1]))
                _show(taps, keys, projected, (first * size, (3 - last) * size))
            yield from projected.chunk(last - first, dim=-1)

    def _weights(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias that make queries (0), keys (1) and values (2), or some of them."""
        rows = slice(first * self.embed_dim, last * self.embed_dim)
        bias: Tensor | None = self.in_proj_bias
        if last - first == 3:
            return self.in_proj_weight, bias  # themselves: autocast converts a parameter once, but a part every time
        of_all = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        weight = self.in_proj_weight[rows] if self.packed else of_all[first]
        return weight, None if bias is None else bias[rows]

    def _mask(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype, qk: tuple[Tensor, Tensor]
    ) -> Tensor | None:
        """Return what is added to attention before the softmax: (1 or batch x heads, 1 or target, source)."""
        (batch, heads, target, _), source = qk[0].shape, qk[1].shape[2]
        other = F._none_or_dtype(attn_mask)
        padding = F._canonical_mask(key_padding_mask, "key_padding_mask", other, "attn_mask", dtype)
        mask = F._canonical_mask(attn_mask, "attn_mask", None, "", dtype, check_other=False)
        if mask is not None:
            _check(mask, "attn_mask", (target, source), (batch * heads, target, source))
            mask = mask if mask.dim() == 3 else mask[None]
        if padding is not None:
            _check(padding, "key_padding_mask", (batch, source))
            padding = padding.unsqueeze(1).repeat_interleave(heads, dim=0)  # (batch x heads, 1, source)
            mask = padding if mask is None else mask + padding
        more = (self.bias_k is not None) + self.add_zero_attn
        return mask if mask is None or not more else F.pad(mask, (0, more))

    def _extended(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Return keys or values with those that belong to no input, if there are any."""
        batch, heads, _, size = rows.shape
        more = [] if bias is None else [bias.view(1, heads, 1, size).expand(batch, -1, -1, -1)]
        if self.add_zero_attn:
            more.append(rows.new_zeros(batch, heads, 1, size))
        return torch.cat([rows, *more], dim=2) if more else rows

    def _split(self, rows: Tensor, batched: bool) -> Tensor:
        """Return rows in the layout of the module's input as (batch, heads, time, d)."""
        rows = rows.unflatten(-1, (self.num_heads, self.head_dim))
        if not batched:
            return rows.transpose(0, 1).unsqueeze(0)
        return rows.transpose(1, 2) if self.batch_first else rows.permute(1, 2, 0, 3)

    def _joined(self, heads: Tensor, batched: bool) -> Tensor:
        """Return (batch, heads, time, d) as rows in the layout of the module's input."""
        if not batched:
            return heads.squeeze(0).transpose(0, 1).flatten(-2)
        return (heads.transpose(1, 2) if self.batch_first else heads.permute(2, 0, 1, 3)).flatten(-2)

    def _taps(self) -> "Iterator[_Tapped]":
        return (hook for hook in self._forward_hooks.values() if isinstance(hook, _Tapped))

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: taps belong to whoever set them, on this module only."""
        kept = OrderedDict((n, hook) for n, hook in self._forward_hooks.items() if not isinstance(hook, _Tapped))
        return {**self.__dict__, "_forward_hooks": kept}


class _Tapped:
    """A tap among a module's forward hooks, where it does nothing.

    It is there for torch to see: nn.TransformerEncoderLayer computes everything in one kernel of its own, without
    calling its modules, unless one of them has a hook.
    """

    def __init__(self, on_keys: Tap) -> None:
        self.on_keys = on_keys

    def __call__(self, *called: Any) -> None:
        pass


def _products(inputs: Sequence[Tensor], packed: bool) -> list[tuple[int, int]]:
    """Return which of queries (0), keys (1) and values (2) are made together: ranges of them."""
    query, key, value = inputs
    if packed and key is value:
        return [(0, 3)] if query is key else [(0, 1), (1, 3)]
    return [(0, 1), (1, 2), (2, 3)]


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes) + 1)]


def _can_be_shown(projected: Tensor) -> bool:
    """Return whether there is something to see: in torch.vmap and torch.func, tensors are not themselves."""
    if torch.compiler.is_compiling():  # a compiler cannot follow the question
        return projected.numel() > 0
    return projected.numel() > 0 and not torch._C._functorch.is_functorch_wrapped_tensor(projected)


def _show(taps: Sequence[_Tapped], keys: Tensor, projected: Tensor, around: tuple[int, int]) -> None:
    """Show taps the keys of a product, and the errors at what it made, with so many zeros around them."""
    receivers = [receive for tap in taps if (receive := tap.on_keys(keys)) is not None]
    if not receivers or not projected.requires_grad:
        return

    def on_errors(errors: Tensor) -> None:
        padded = F.pad(errors.detach(), around) if any(around) else errors.detach()
        for receive in receivers:
            receive(padded)

    projected.register_hook(on_errors)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return what is attended to (batch, heads, target, d), and the weights (batch, heads, target, source)."""
    sizes = q.shape[:2]
    q, k, v = (rows.flatten(0, 1) for rows in (q * sqrt(1.0 / q.shape[-1]), k, v))
    scores = torch.bmm(q, k.mT) if mask is None else torch.baddbmm(mask, q, k.mT)
    weights = F.softmax(scores, dim=-1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.bmm(weights, v).unflatten(0, sizes), weights.unflatten(0, sizes)


def _check(mask: Tensor, name: str, *expected: tuple[int, ...]) -> None:
    if tuple(mask.shape) not in expected:
        shapes = " or ".join(str(shape) for shape in expected)
        raise RuntimeError(f"MultiheadAttention: expected {name} of shape {shapes}, got {tuple(mask.shape)}")

"""Round gradients as autocast does: each is computed in half precision, and widened to that of the weight after.

    for exact, rounded in rounded_passes(products, codes): ...      # E^T X of each backward pass, and what became of it

A product in half precision is summed up in float32, and rounded when it is done. Calls of a layer within one autocast
share a copy of the weight in half precision, so their gradients are summed up there, from the last call to the first,
and each sum is rounded. Whatever follows, other passes, clipping, unscaling, is done in the precision of the weight.

To round a number is to multiply it by another close to 1; to round a sum, each of what it is the sum of. So what
rounding did to a pass can be shared out to its slots.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from dualform.store.schema import JOINED, PASS_PRECISIONS

HALF = {getattr(torch, name): code for code, name in enumerate(PASS_PRECISIONS[:JOINED]) if code}
_DTYPES: dict[int, torch.dtype] = {code: getattr(torch, name) for code, name in enumerate(PASS_PRECISIONS) if code}


def call_codes(dtypes: Iterable[torch.dtype], *, apart: bool = False) -> list[int]:
    """Return the codes of the calls in one pass, given the precision of each; `apart`: none are summed up in it."""
    codes: list[int] = []
    for code in (HALF.get(dtype, 0) for dtype in dtypes):
        joined = code + JOINED - 1
        follows = bool(code and codes and codes[-1] in (code, joined))
        codes.append(joined if follows and not apart else code)
    return codes


def pass_spans(codes: Sequence[int]) -> list[slice]:
    """Return which calls make up each pass."""
    starts = [i for i, code in enumerate(codes) if i == 0 or code < JOINED]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(codes)], strict=False)]


def rounded_passes(products: Iterable[Tensor], codes: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what each pass adds to a gradient: without rounding, and as training had it; both one if it had none.

    Args:
        products: E^T X of each call, in order.
        codes: The code of each.
    """
    left = iter(products)
    for span in pass_spans(codes):
        calls, code = list(islice(left, span.stop - span.start)), codes[span.start]
        exact = sum(calls[1:], start=calls[0])
        yield exact, _sums(calls, code)[-1].to(exact.dtype) if code else exact


def rounding_ratios(products: Sequence[Tensor], codes: Sequence[int]) -> list[Tensor]:
    """Return what rounding multiplied the product of each call by, entrywise: times these, they add up as rounded."""
    return [ratio for span in pass_spans(codes) for ratio in _ratios(products[span], codes[span.start])]


def _ratios(calls: Sequence[Tensor], code: int) -> list[Tensor]:
    if not code:
        return [torch.ones_like(call) for call in calls]
    ratios: list[Tensor] = []
    before = torch.zeros_like(calls[0])
    for call, total in zip(reversed(calls), _sums(calls, code), strict=True):
        rounded, total = call.to(_DTYPES[code]).to(call.dtype), total.to(call.dtype)
        of_sum = _quotient(total, before + rounded)
        ratios = [ratio * of_sum for ratio in [*ratios, _quotient(rounded, call)]]
        before = total
    return ratios[::-1]


def _quotient(rounded: Tensor, exact: Tensor) -> Tensor:
    """Return what a number was multiplied by; 1 where it is 0."""
    return torch.where(exact == 0, 1.0, rounded / exact)


def _sums(calls: Sequence[Tensor], code: int) -> list[Tensor]:
    """Return the sums of calls in half precision, from the last call on."""
    sums: list[Tensor] = []
    for call in reversed(calls):
        rounded = call.to(_DTYPES[code])
        sums.append(sums[-1] + rounded if sums else rounded)
    return sums

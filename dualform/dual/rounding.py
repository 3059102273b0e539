"""Compute what autocast's rounding of gradients has added to parameters whose coefficients are numbers.

    W = initial part + sum over passes of c_p (round(E_p^T X_p) - E_p^T X_p) + sum over slots of c_t e_t x_t^T

Slots add up to the gradients before rounding. What rounding made of these is known just as well, from whole passes, but
it is in no single slot: it stays with the initial part, whatever is muted. Where coefficients are matrices, slots are
multiplied by it instead (replay.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from dualform.dual.coefficients import ParameterCoefficients
from dualform.dual.sight import Sight
from dualform.engine import Plan, carry_out
from dualform.kinds.half_precision import pass_spans, rounded_passes
from dualform.slots import Block, Selection, Slots
from dualform.store import Layer, Run, Shard, Use
from dualform.store.schema import PASS_PRECISIONS

Coefficients = Mapping[str, ParameterCoefficients]


def pass_gradients(
    use: Use, blocks: Sequence[Block], values: Callable[[Block], Tensor] = attrgetter("values")
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield of each pass of a step its factor, and its gradient (units, width): as slots add up, and as it was rounded.

    Args:
        use: The use of a parameter.
        blocks: The slots of the passes, a block for each call.
        values: Returns the values of a block, or some units of them.
    """
    codes = [block.precision for block in blocks]
    products = (block.product(use, values(block)) for block in blocks)
    for span, (exact, rounded) in zip(pass_spans(codes), rounded_passes(products, codes), strict=True):
        yield float(blocks[span.start].factors(use)[0]), exact, rounded


class RoundedSteps:
    """The steps of a layer that were rounded: their slots, a block for each call."""

    splits = True

    def __init__(self, run: Run, layer: Layer) -> None:
        self._run, self._layer = run, layer
        self._slots = Slots(run, layer)
        shards = run.slot_shards(layer.name)
        self._shards: list[Shard] = [shard for shard in shards if shard.pass_precision(layer.name) is not None]

    def __reduce__(self) -> tuple[type, tuple[Run, Layer]]:
        return RoundedSteps, (self._run, self._layer)

    def __bool__(self) -> bool:
        return bool(self._shards)

    def chapters(self, selection: Selection, since: int = 0) -> list[int]:
        infos = [shard.info for shard in self._shards]
        return [i for i, info in enumerate(infos) if since < info.last_step and info.first_step < selection.until]

    def first_step(self, chapter: int) -> int:
        return self._shards[chapter].info.first_step

    def stream(self, chapters: Iterable[int], selection: Selection, since: int = 0) -> Iterator[list[Block]]:
        for shard in (self._shards[number] for number in chapters):
            for step, passes in self._slots.passes(shard).items():
                if since <= step < selection.until:
                    yield [self._slots.block(rows) for rows in passes]


class RoundingFold:
    """Sums up what rounding has added to each trained use of a layer, for each of some coefficients: (d_out, width).

    Or, of uses that are seen through vectors, (numbers, n).
    """

    def __init__(self, layer: Layer, of: Sequence[Coefficients], sights: Mapping[Use, Sight] | None = None) -> None:
        self._of, self._sights = of, sights
        shapes = {use: (layer.d_out, use.width) for use in layer.trained}
        if sights is not None:
            shapes = {use: (sight.numbers, sight.vectors.shape[1]) for use, sight in sights.items()}
        self._sums = [{use: torch.zeros(shape, dtype=torch.float64) for use, shape in shapes.items()} for _ in of]

    def add(self, blocks: list[Block]) -> None:
        steps = blocks[0].steps[:1]
        for use in self._sums[0]:
            name = use.parameter.name
            coefficients = [float(of[name].at(steps)[0]) for of in self._of]
            total: Tensor | float = 0.0
            for factor, exact, rounded in pass_gradients(use, blocks):
                total = total + factor * (rounded - exact)
            assert isinstance(total, Tensor)
            seen = total.double() if self._sights is None else self._sights[use].of_map(total.double())
            for coefficient, sums in zip(coefficients, self._sums, strict=True):
                if coefficient:
                    sums[use] += coefficient * seen

    def merge(self, other: "RoundingFold") -> None:
        for sums, others in zip(self._sums, other._sums, strict=True):
            for use, added in others.items():
                sums[use] += added

    def finish(self) -> list[dict[Use, Tensor]]:
        return self._sums


def rounding_of(
    run: Run, layer: Layer, of: Sequence[Coefficients], steps: range, sights: Mapping[Use, Sight] | None = None
) -> list[dict[Use, Tensor]]:
    """Return what rounding has added to a layer's trained uses in some steps; nothing where there was none."""
    rounded, fold = RoundedSteps(run, layer), RoundingFold(layer, of, sights)
    if not rounded:
        return [{} for _ in of]
    sums: list[dict[Use, Tensor]] = carry_out(Plan(rounded, Selection(steps.stop), (fold,), steps.start))[0]
    return sums


def half_precisions(run: Run, layers: Sequence[Layer]) -> str | None:
    """Return the names of the half precisions that gradients of these layers were rounded to; None: of none."""
    codes = [shard.pass_precision(layer.name) for layer in layers for shard in run.slot_shards(layer.name)]
    names = {PASS_PRECISIONS[code] for some in codes if some is not None for code in set(some.tolist()) if code}
    return " and ".join(sorted(names)) or None

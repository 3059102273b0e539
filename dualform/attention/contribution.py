"""Compute what slots add to an output. Attention says how near a slot is; its contribution says what it added.

    contribution = spotlight["layers.2"].contribution(target=3)
    contribution.top(10, per="id")         # the training examples that speak loudest for class 3
    contribution.total(by="label")         # signed: what each class of examples has added, or taken away
    contribution.initial().numpy() + contribution.total()["total"]      # equals contribution.output()

The contribution of a slot to a direction g of a layer's output is c_t (e_t . g)(x_t . q), and likewise of
its bias; under an optimiser that divides elementwise, e_t^T (R_t (.) g q^T) x_t. Of a training under autocast, what
rounding gradients to half precision has added is part of the latter, but of none of the former: it is in `initial`.
All of them are computed when first asked for, and kept for further questions.

Slots of a layer that shares a weight with this one contribute too; they are asked for by that layer's name:

    head.contribution(3, slots_of="wte").top(10)
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dualform.attention.folds import ComputedScores
from dualform.attention.plan import QueryBatch, Question, Sources
from dualform.attention.questions import Answers, Output
from dualform.dual.rebuilt import output_of
from dualform.errors import QueryError

_MAX_SCORES = 1 << 26  # slots times queries, kept in memory: a quarter of a gigabyte


class _Scored(Answers):
    """Answers by scores that every slot has for every query, computed once."""

    def __init__(
        self,
        sources: Sources,
        layer: str,
        queries: Tensor,
        directions: Tensor,
        valued: bool,
        slots_of: str | None = None,
    ) -> None:
        super().__init__(sources, layer, queries)
        sources.view.need_single_slots("contributions of single slots")
        self.directions = directions.to(queries.dtype)  # (queries, d_out)
        self._slots_of, self._valued = slots_of or layer, valued
        self._kept: Tensor | None = None  # (slots, queries)

    @property
    def slots_of(self) -> str:
        return self._slots_of

    def _portion(self, questions: Sequence[Question]) -> int:
        return min(super()._portion(questions), self._max_queries)

    @property
    def _max_queries(self) -> int:
        """How many queries' scores fit into memory."""
        return max(1, _MAX_SCORES // max(1, len(self._sources.view.slots(self.slots_of))))

    def _batches(self, portion: int) -> Iterator[QueryBatch]:
        if self._kept is None and len(self.queries) <= self._max_queries:
            self._kept = self._scores(slice(None))
        for start in range(0, len(self.queries), portion):
            some = slice(start, start + portion)
            scores = self._scores(some) if self._kept is None else self._kept[:, some]
            slots, asked = self._sources.view.slots(self.slots_of), self._sources.view.run.layers[self.name]
            yield QueryBatch(self._sources, slots, self.queries[some], ComputedScores(scores), asked=asked)

    def _scores(self, some: slice) -> Tensor:
        dual = self._sources.duals.of(self.name)
        return dual.scores(self.queries[some], self.directions[some], self._valued, self.slots_of)


class LayerContribution(_Scored):
    """The contributions of slots to one direction of a layer's output for each query: signed, adding up.

    Slots are the layer's own, or those of `slots_of`, a layer that shares a weight with it; their steps and tags are in
    the tables. `classes` are the targets, one for each input; None: directions were given.
    """

    def __init__(
        self,
        sources: Sources,
        layer: str,
        queries: Tensor,
        directions: Tensor,
        classes: Tensor | None,
        slots_of: str | None = None,
    ) -> None:
        super().__init__(sources, layer, queries, directions, valued=True, slots_of=slots_of)
        self.classes = classes

    @property
    def first_order(self) -> bool:
        """Whether directions are gradients through further layers, and not one of this layer's own outputs each."""
        ones, others = (self.directions == 1).sum(dim=1), (self.directions != 0).sum(dim=1)
        return self.classes is not None and not bool(((ones == 1) & (others == 1)).all())

    def initial(self) -> Tensor:
        """Return the part that is due to no slot: (queries,)."""
        layer = self._sources.view.run.layers[self.name]
        return self._along(output_of(layer, self._sources.duals.initial(self.name), self.queries))

    def output(self) -> Tensor:
        """Return the layer's output along the direction: the initial part and all contributions. (queries,)

        Those of layers that share a weight with it are among them.
        """
        return self._along(Answers(self._sources, self.name, self.queries).collect(Output())[0])

    def _along(self, output: Tensor) -> Tensor:
        return (output.double() * self.directions.double()).sum(dim=1)

    def __repr__(self) -> str:
        of = "" if self.slots_of == self.name else f", slots of {self.slots_of!r}"
        return f"LayerContribution({self.name!r}: {len(self.queries):,} queries{of})"


class LayerEffective(_Scored):
    """Attention weights as they take effect in one output unit."""

    def __init__(self, sources: Sources, layer: str, queries: Tensor, unit: int) -> None:
        units = sources.view.run.layers[layer].d_out
        if not 0 <= unit < units:
            raise QueryError(f"layer {layer!r} has units 0 to {units - 1}, not {unit}")
        directions = torch.zeros(len(queries), units)
        directions[:, unit] = 1.0
        super().__init__(sources, layer, queries, directions, valued=False)

    def __repr__(self) -> str:
        return f"LayerEffective({self.name!r}: {len(self.queries):,} queries)"

"""Compute the dual form under an optimiser whose coefficients multiply as matrices, such as Muon: C_t e_t x_t^T.

    W_until = k W_since + pm m_since - sum_t k_t r_t + sum_t C_t e_t x_t^T
    contribution of a slot to a direction g:  (e_t . C_t g)(x_t . q)

or, where matrices multiply from the right, e_t x_t^T C_t and (e_t . g)(x_t . C_t q). All of it goes from the last step
to the first, as for optimisers that divide elementwise, and by the same code: only what a coefficient makes of a
gradient is another product. C_t is symmetric, being a sum of polynomials in u u^T. The remainders r_t are what
torch's bfloat16 adds to each step; they are recorded, due to no slot, and belong to the initial part.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dualform.dual.asked import Asked
from dualform.dual.elementwise import ElementwiseDual, ReplayFold
from dualform.dual.linear import Strengths
from dualform.dual.replay import Replay, ReplayedStep
from dualform.errors import QueryError
from dualform.kinds import kind_of
from dualform.store import Layer


class MatrixDual(ElementwiseDual):
    """A layer's dual form, with matrices for coefficients that multiply as such."""

    def scores(self, queries: Tensor, directions: Tensor, valued: bool, slots_of: str | None = None) -> Tensor:
        if not valued:
            raise self._no_single_coefficient("take effect in one output unit")
        return super().scores(queries, directions, valued, slots_of)

    def _scores_fold(
        self, units: Tensor | None, user: Layer, asked: Sequence[Asked], valued: bool, scores: Tensor
    ) -> ReplayFold:
        return MatrixScoresFold(self._replay(), user, asked, scores)

    def strengths(self) -> Strengths:
        raise self._no_single_coefficient("be weighed by a slot's coefficient")

    def _no_single_coefficient(self, what: str) -> QueryError:
        return QueryError(
            f"layer {self._layer.name!r} was trained by an optimiser that mixes output units by a matrix: attention "
            f"cannot {what}. Ask for layer.contribution(...) instead"
        )


class MatrixScoresFold(ReplayFold):
    """Writes what each slot of a layer adds to what is asked of it, to (slots, queries)."""

    def __init__(self, replay: Replay, layer: Layer, asked: Sequence[Asked], scores: Tensor) -> None:
        super().__init__(replay)
        self._layer, self._asked, self._scores = layer, asked, scores

    def add(self, step: ReplayedStep) -> None:
        layer, coefficients = self._layer, self._coefficients(step)
        asked = [question for question in self._asked if question.use.parameter in coefficients]
        maps = [self._maps(question, coefficients[question.use.parameter]) for question in asked]
        roundings = [self.replay.rounding(step, layer, question.use) for question in asked]
        for block in self.replay.blocks(step, layer):
            scores = torch.zeros(len(block), self._scores.shape[1], dtype=block.dtype)
            for question, of_queries, rounding in zip(asked, maps, roundings, strict=True):
                use, keys = question.use, block.keys.of(question.use)
                everything = torch.ones(use.width, dtype=block.dtype)
                for i, matrix in enumerate(of_queries):  # e^T A x
                    seen = keys.effective(rounding.of(block, matrix), everything)
                    scores[:, i] += float(block.factors(use)[0]) * (block.values * seen).sum(dim=1)
            self._scores[torch.from_numpy(block.slots)] = scores.to(self._scores.dtype)

    def _maps(self, asked: Asked, coefficient: Tensor) -> list[Tensor]:
        """Return what a slot's e and x are multiplied by for each query: A = C g q^T, or g q^T C, as a map."""
        kind, use, dtype = kind_of(self._layer), asked.use, self.replay.dtype
        pairs = zip(asked.directions.to(dtype), asked.queries.to(dtype), strict=True)
        adjoints = (kind.from_map(use, direction.outer(query)) for direction, query in pairs)
        return [kind.as_map(use, self.replay.rule.times(coefficient, adjoint)) for adjoint in adjoints]

    def finish(self) -> Tensor:
        return self._scores

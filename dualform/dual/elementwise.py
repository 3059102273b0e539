"""Compute the dual form under an optimiser that divides elementwise, such as Adam: coefficients R_t are matrices.

    W_until = pW (.) W_since + pm (.) m_since + sum_t R_t (.) e_t x_t^T
    contribution of a slot to a direction g:  e_t^T (R_t (.) g q^T) x_t

R_t multiplies all slots of a step alike, so their products are summed up first: R_t (.) E^T X. It is known from the
last step to the first, so chapters are replayed in that order, one after the other. Where autocast rounded the gradient
of a pass, its slots are multiplied by what rounding multiplied it by, entry by entry: they add up as in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dualform.algebra import Adjoint, Rule
from dualform.dual.asked import Asked, asked_of
from dualform.dual.certificate import LayerCertificate
from dualform.dual.certify_elementwise import certify
from dualform.dual.coefficients import Array
from dualform.dual.group_weights import GroupWeight, gradients_by_group
from dualform.dual.linear import Strengths
from dualform.dual.rebuilt import Rebuilt, sharing
from dualform.dual.replay import LongSum, Replay, ReplayedStep, Update
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Fold, Plan, carry_out
from dualform.errors import QueryError
from dualform.kinds import Keys, kind_of
from dualform.slots import Block, ByTags, Selection, View
from dualform.store import Layer, Parameter, Shard, Use


class ElementwiseDual:
    """A layer's dual form, with matrices for coefficients."""

    def __init__(self, view: View, layer: Layer, rule: Rule) -> None:
        self._view, self._layer, self._rule = view, layer, rule
        self._sharing = sharing(view.run.manifest, layer)

    def _replayed(self, fold: "ReplayFold", since: int = 0) -> Any:
        return carry_out(Plan(fold.replay, self._view.selection, (fold,), since))[0]

    def _replay(self, units: Tensor | None = None) -> Replay:
        return Replay(self._view.run, self._sharing, self._rule, units)

    def rebuild(self, since: Shard) -> dict[Use, Rebuilt]:
        added = AddedFold(self._replay(), self._view.selection)
        sums = self._replayed(added, since.info.last_step)
        kind, maps = kind_of(self._layer), {}
        for use in self._layer.uses:
            if use.trained:
                initial = added.initial(since, use.parameter)
                slots = torch.zeros_like(initial) + sums[use.parameter].total
            else:
                initial = stored_parameter(since, use.parameter).double()
                slots = torch.zeros_like(initial)
            maps[use] = Rebuilt(kind.as_map(use, initial), kind.as_map(use, slots))
        return maps

    def initial(self) -> dict[Use, Tensor] | None:
        return None  # it is known after the first step only, which is replayed last

    def output_fold(self, queries: Tensor) -> Fold | None:
        return None  # slots are summed up to what they have made of the weights first

    def scores(self, queries: Tensor, directions: Tensor, valued: bool, slots_of: str | None = None) -> Tensor:
        user = self._layer if slots_of is None else self._view.run.layers[slots_of]
        scores = torch.zeros(len(self._view.slots(user.name)), len(queries), dtype=queries.dtype)
        if not directions.any():  # at a unit that is off, nothing contributes
            return scores
        units: Tensor | None = torch.nonzero(directions.any(dim=0)).flatten()  # the others are not asked about
        # Units of this layer are key entries of one that has a tied weight the other way round. And outputs that see
        # entries of their own, or that matter to each other, have to be there all.
        if len(self._sharing) > 1 or self._rule.joint or any(use.groups > 1 for use in self._layer.trained):
            units = None
        asked = asked_of(self._layer, user, queries, directions if units is None else directions[:, units])
        if not valued:
            asked = [question for question in asked if question.use in user.attended]
        self._replayed(self._scores_fold(units, user, asked, valued, scores))
        return scores

    def _scores_fold(
        self, units: Tensor | None, user: Layer, asked: Sequence[Asked], valued: bool, scores: Tensor
    ) -> "ReplayFold":
        return ScoresFold(self._replay(units), user, asked, valued, scores)

    def group_weights(self, grouping: ByTags) -> dict[Parameter, GroupWeight]:
        fold, run = GroupsFold(self._replay(), self._view.selection, grouping), self._view.run
        weights = {}
        for parameter, sums in self._replayed(fold).items():
            whole = fold.initial(run.shards[0], parameter)
            groups = torch.zeros(grouping.size, *whole.shape, dtype=torch.float64)
            for group, total in enumerate(added.total for added in sums):
                whole += total
                groups[group] += total
            weights[parameter] = GroupWeight.of(run, parameter, whole, groups)
        return weights

    def certify(self) -> LayerCertificate:
        return certify(self._replay())

    def coefficient(self, block: Block) -> Array | None:
        return None

    def strengths(self) -> Strengths:
        raise QueryError(
            f"layer {self._layer.name!r} was trained by an optimiser that divides elementwise: a slot has no single "
            "coefficient to weigh attention by. Ask for layer.contribution(...).total(...) instead"
        )


class ReplayFold:
    """What folds over replayed steps have in common: one adjoint a parameter, which needs them latest first."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._adjoints = {parameter: Adjoint() for parameter in replay.parameters}
        self._remainders = {parameter: LongSum() for parameter in replay.parameters}

    def add(self, step: ReplayedStep) -> None:
        raise NotImplementedError

    def finish(self) -> Any:
        raise NotImplementedError

    def _coefficients(self, step: ReplayedStep) -> dict[Parameter, Any]:
        """Return R_t of each parameter that was stepped; a number, before RAdam divides."""
        return {parameter: self._back(parameter, update) for parameter, update in step.updates.items()}

    def _back(self, parameter: Parameter, update: Update) -> Any:
        step, adjoint = update.step(), self._adjoints[parameter]
        if update.remainder is not None:
            self._remainders[parameter].add(update.remainder * (-adjoint.weight * step.rest))
        return adjoint.back(step)

    def initial(self, since: Shard, parameter: Parameter) -> Tensor:
        """Return what is due to no slot: what the steps so far have left of a snapshot before them, in float64.

        And what the optimiser's own rounding has added since, where it is kept.
        """
        adjoint = self._adjoints[parameter]
        left = initial_part(since, parameter, self.replay.rule, adjoint.weight, adjoint.momentum)
        return left + self._remainders[parameter].total

    def merge(self, other: Any) -> None:
        raise NotImplementedError("a replay is not split: its coefficients go from step to step")


class AddedFold(ReplayFold):
    """Sums up what the chosen slots have added to each parameter."""

    def __init__(self, replay: Replay, selection: Selection) -> None:
        super().__init__(replay)
        self._selection = selection
        self._sums = {parameter: LongSum() for parameter in replay.parameters}

    def add(self, step: ReplayedStep) -> None:
        coefficients, rule = self._coefficients(step), self.replay.rule
        if self.replay.chooses_all(step, self._selection):
            for parameter, coefficient in coefficients.items():
                self._sums[parameter].add(rule.times(coefficient, step.updates[parameter].gradient))
            return
        for layer in self.replay.layers:
            blocks = self.replay.blocks(step, layer, self._selection)
            for use in (use for use in layer.trained if use.parameter in coefficients and blocks):
                rounding = self.replay.rounding(step, layer, use)
                for block in blocks:
                    gradient = rounding.of(block, block.product(use, block.values)) * float(block.factors(use)[0])
                    added = kind_of(layer).from_map(use, gradient)
                    self._sums[use.parameter].add(rule.times(coefficients[use.parameter], added))

    def finish(self) -> dict[Parameter, LongSum]:
        return self._sums


class GroupsFold(ReplayFold):
    """Sums up what each group of slots has added to each parameter."""

    def __init__(self, replay: Replay, selection: Selection, grouping: ByTags) -> None:
        super().__init__(replay)
        self._selection, self._grouping = selection, grouping
        self._sums = {parameter: [LongSum() for _ in range(grouping.size)] for parameter in replay.parameters}

    def add(self, step: ReplayedStep) -> None:
        coefficients = self._coefficients(step)
        for layer in self.replay.layers:
            slots, blocks = self.replay.slots[layer.name], self.replay.blocks(step, layer, self._selection)
            uses = [use for use in layer.trained if use.parameter in coefficients]
            roundings = {use: self.replay.rounding(step, layer, use) for use in uses}
            # each pass was rounded by itself
            for some in [[block] for block in blocks] if any(roundings.values()) else [blocks]:
                for use, group, gradient in gradients_by_group(slots, some, self._grouping, uses):
                    added = kind_of(layer).from_map(use, roundings[use].of(some[0], gradient))
                    product = self.replay.rule.times(coefficients[use.parameter], added)
                    self._sums[use.parameter][group].add(product)

    def finish(self) -> dict[Parameter, list[LongSum]]:
        return self._sums


class ScoresFold(ReplayFold):
    """Writes what each slot of a layer adds to what is asked of it, to (slots, queries)."""

    def __init__(self, replay: Replay, layer: Layer, asked: Sequence[Asked], valued: bool, scores: Tensor) -> None:
        super().__init__(replay)
        self._layer, self._valued, self._scores = layer, valued, scores
        self._asked = {question.use: _directed_queries(question, replay.dtype) for question in asked}
        self._width = asked[0].directions.shape[1]

    def add(self, step: ReplayedStep) -> None:
        layer, coefficients = self._layer, self._coefficients(step)
        maps = {}
        for use in (use for use in self._asked if use.parameter in coefficients):
            gradient = step.updates[use.parameter].gradient
            whole = torch.as_tensor(coefficients[use.parameter], dtype=gradient.dtype).expand(gradient.shape)
            maps[use] = whole if self.replay.units is not None else kind_of(layer).as_map(use, whole)
        roundings = {use: self.replay.rounding(step, layer, use) for use in maps}
        for block in self.replay.blocks(step, layer):
            values = (
                self.replay.values(block) if self._valued else torch.ones(len(block), self._width, dtype=block.dtype)
            )
            scores = torch.zeros(len(block), self._scores.shape[1], dtype=values.dtype)
            for use, coefficient in maps.items():
                rounded, keys = roundings[use].of(block, coefficient), block.keys.of(use)
                added = [query.scores(keys, values, rounded) for query in self._asked[use]]
                scores += float(block.factors(use)[0]) * torch.stack(added, dim=1)
            self._scores[torch.from_numpy(block.slots)] = scores.to(self._scores.dtype)

    def finish(self) -> Tensor:
        return self._scores


@dataclass(frozen=True, eq=False)
class _DirectedQuery:
    """A query and its direction, of which only the units that are not zero count."""

    query: Tensor  # (width,)
    units: Tensor | slice
    direction: Tensor  # (units,)

    def scores(self, keys: Keys, values: Tensor, coefficient: Tensor) -> Tensor:
        """Return what each slot of a block adds: (slots,)."""
        along = values[:, self.units] * self.direction  # (slots, units)
        return (along * keys.effective(coefficient[self.units], self.query)).sum(dim=1)


def _directed_queries(asked: Asked, dtype: torch.dtype) -> list[_DirectedQuery]:
    pairs = zip(asked.queries.to(dtype), asked.directions.to(dtype), strict=True)
    if asked.use.groups > 1:
        return [_DirectedQuery(query, slice(None), direction) for query, direction in pairs]
    units = [(query, torch.nonzero(direction).flatten(), direction) for query, direction in pairs]
    return [_DirectedQuery(query, some, direction[some]) for query, some, direction in units]

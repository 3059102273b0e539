"""Compute the dual form under an optimiser whose coefficients are numbers, such as SGD.

    W_until = initial W_since + momentum m_since + sum_t c_t e_t x_t^T
    contribution of a slot to a direction g:  c_t (e_t . g)(x_t . q)

All slots of many steps are one product, and chapters can be read in any order. What autocast's rounding of gradients
has added is in no slot: it is with the initial part (rounding.py).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dualform.algebra import Rule
from dualform.dual.asked import Asked, asked_of
from dualform.dual.certificate import LayerCertificate
from dualform.dual.certify_linear import certify
from dualform.dual.coefficients import Array, Ledger, ParameterCoefficients
from dualform.dual.group_weights import GroupWeight, GroupWeightsFold
from dualform.dual.rebuilt import Rebuilt, over_all_uses, sharing
from dualform.dual.rounding import rounding_of
from dualform.dual.state import initial_part, stored_parameter
from dualform.engine import Fold, Plan, carry_out
from dualform.kinds import kind_of, paired_with
from dualform.slots import Block, ByTags, View
from dualform.store import Layer, Parameter, Shard, Use

Coefficients = Mapping[str, ParameterCoefficients]


class LinearDual:
    """A layer's dual form, with numbers for coefficients."""

    def __init__(self, view: View, layer: Layer, rule: Rule, ledger: Ledger) -> None:
        self._view, self._layer, self._rule, self._ledger = view, layer, rule, ledger
        self._sharing = sharing(view.run.manifest, layer)
        self._parameters = [use.parameter for use in layer.trained]
        self._rounding = lru_cache(maxsize=8)(self._sum_up_rounding)

    def _between(self, since: int, until: int) -> Coefficients:
        optimizer = self._parameters[0].optimizer
        assert optimizer is not None
        return self._ledger.between(self._rule, optimizer, since, until)

    @property
    def _whole(self) -> Coefficients:
        return self._between(0, self._view.selection.until)

    def rebuild(self, since: Shard) -> dict[Use, Rebuilt]:
        start, selection = since.info.last_step, self._view.selection
        of = self._between(start, selection.until)

        def added_by(layer: Layer) -> Mapping[Use, Tensor]:
            uses = [use for use in layer.trained if use.parameter in self._parameters]
            plan = Plan(self._view.slots(layer.name), selection, (SumFold(layer, uses, of),), start)
            added: Mapping[Use, Tensor] = carry_out(plan)[0]
            return added

        kind, added = kind_of(self._layer), over_all_uses(self._sharing, self._parameters, added_by)
        maps = {}
        for use in self._layer.uses:
            initial = kind.as_map(use, self._initial(since, use.parameter))
            slots = kind.as_map(use, added[use.parameter]) if use.trained else torch.zeros_like(initial)
            maps[use] = Rebuilt(initial, slots)
        return maps

    def initial(self) -> dict[Use, Tensor] | None:
        kind, since = kind_of(self._layer), self._view.run.shards[0]
        return {use: kind.as_map(use, self._initial(since, use.parameter)) for use in self._layer.uses}

    def _initial(self, since: Shard, parameter: Parameter) -> Tensor:
        """Return what is due to no slot: what is left of a snapshot, and what autocast's rounding has added since."""
        if not parameter.trained:  # it stays itself
            return stored_parameter(since, parameter).double()
        own = self._between(since.info.last_step, self._view.selection.until)[parameter.name]
        left = initial_part(since, parameter, self._rule, own.initial, own.momentum)
        return left + self._rounding(since.info.last_step).get(parameter, 0.0)

    def _sum_up_rounding(self, since: int) -> dict[Parameter, Tensor]:
        """Return what rounding has added to each parameter from a step on."""
        run, until = self._view.run, self._view.selection.until
        of = self._between(since, until)
        return over_all_uses(
            self._sharing, self._parameters, lambda layer: rounding_of(run, layer, [of], range(since, until))[0]
        )

    def output_fold(self, queries: Tensor) -> Fold | None:
        # slots of other layers are in a tied weight, too: it is summed up first
        return None if len(self._sharing) > 1 else OutputFold(self._layer, self._whole, queries)

    def scores(self, queries: Tensor, directions: Tensor, valued: bool, slots_of: str | None = None) -> Tensor:
        user = self._layer if slots_of is None else self._view.run.layers[slots_of]
        slots, asked = self._view.slots(user.name), asked_of(self._layer, user, queries, directions)
        if not valued:
            asked = [question for question in asked if question.use in user.attended]
        fold = ScoresFold(asked, len(slots), self._whole, valued)
        if not directions.any():  # at a unit that is off, nothing contributes
            return fold.finish()
        scores: Tensor = carry_out(Plan(slots, self._view.selection, (fold,)))[0]
        return scores

    def group_weights(self, grouping: ByTags) -> dict[Parameter, GroupWeight]:
        run, of = self._view.run, self._whole

        def added_by(layer: Layer) -> Mapping[Use, Tensor]:
            slots = self._view.slots(layer.name)
            uses = [use for use in layer.trained if use.parameter in self._parameters]
            fold = GroupWeightsFold(slots, grouping, {use: of[use.parameter.name] for use in uses})
            added: Mapping[Use, Tensor] = carry_out(Plan(slots, self._view.selection, (fold,)))[0]
            return added

        weights, added = {}, over_all_uses(self._sharing, self._parameters, added_by)
        for parameter in self._parameters:
            whole = self._initial(run.shards[0], parameter)
            groups = added.get(parameter, torch.zeros(grouping.size, *parameter.shape, dtype=torch.float64))
            weights[parameter] = GroupWeight.of(run, parameter, whole + groups.sum(dim=0), groups)
        return weights

    def certify(self) -> LayerCertificate:
        return certify(self._view.run, self._layer, self._sharing, self._rule, self._between)

    def coefficient(self, block: Block) -> Array | None:
        use = self._layer.trained[0]
        return self._whole[use.parameter.name].of(block, use)

    def strengths(self) -> "Strengths":
        use = self._layer.trained[0]
        return Strengths(use, self._whole[use.parameter.name])


def weighted_values(block: Block, use: Use, of: ParameterCoefficients) -> Tensor:
    """Return c_t e_t: (slots, d_out)."""
    return block.values * torch.from_numpy(of.of(block, use)).to(block.dtype)[:, None]


class SumFold:
    """Sums up c_t e_t x_t^T for some trained uses of a layer, in float64: (d_out, width)."""

    def __init__(self, layer: Layer, uses: Sequence[Use], of: Coefficients) -> None:
        self._of = {use: of[use.parameter.name] for use in uses}
        self._sums = {use: torch.zeros(layer.d_out, use.width, dtype=torch.float64) for use in uses}

    def add(self, block: Block) -> None:
        for use, of in self._of.items():
            self._sums[use] += block.product(use, weighted_values(block, use, of)).double()

    def merge(self, other: "SumFold") -> None:
        for use, added in other._sums.items():
            self._sums[use] += added

    def finish(self) -> dict[Use, Tensor]:
        return self._sums


class OutputFold:
    """Computes the layer's output as attention over the slots: sum_t c_t e_t (x_t . q), in float64."""

    def __init__(self, layer: Layer, of: Coefficients, queries: Tensor) -> None:
        self._of = {use: of[use.parameter.name] for use in layer.trained}
        self._queries = {use: paired_with(use, queries) for use in layer.trained}
        self._output = torch.zeros(len(queries), layer.d_out, dtype=torch.float64)

    def add(self, block: Block) -> None:
        for use, of in self._of.items():
            keys, values, queries = block.keys.of(use), weighted_values(block, use, of), self._queries[use]
            if use.groups == 1:
                self._output += (keys.pair(queries) @ values).double()
            else:
                by_group = keys.pair_groups(queries), values.unflatten(1, (use.groups, -1))
                self._output += torch.einsum("sgn,sgo->ngo", *by_group).flatten(1).double()

    def merge(self, other: "OutputFold") -> None:
        self._output += other._output

    def finish(self) -> Tensor:
        return self._output


class ScoresFold:
    """Computes what each slot of a layer adds: (slots, queries); 0 for those that are not chosen."""

    def __init__(self, asked: Sequence[Asked], slots: int, of: Coefficients, valued: bool) -> None:
        self._asked, self._valued = asked, valued
        self._of = {question.use: of[question.use.parameter.name] for question in asked}
        self._scores = torch.zeros(slots, len(asked[0].queries), dtype=asked[0].queries.dtype)

    def add(self, block: Block) -> None:
        # what a slot adds is its own value, or for attention as it takes effect, 1 in every unit
        width = self._asked[0].directions.shape[1]
        values = block.values if self._valued else torch.ones(1, width, dtype=block.dtype).expand(len(block), -1)
        scores = torch.zeros(len(block), self._scores.shape[1], dtype=self._scores.dtype)
        along: dict[int, Tensor] = {}  # e_t . g of each slot, for directions that several uses have: (slots, queries)
        for asked in self._asked:
            use, keys, directions = asked.use, block.keys.of(asked.use), asked.directions
            coefficient = torch.from_numpy(self._of[use].of(block, use)).to(scores.dtype)[:, None]
            if use.groups > 1:
                scores += coefficient * keys.contributions(values, asked.queries, directions)
                continue
            if id(directions) not in along:
                along[id(directions)] = values @ directions.mT
            scores += coefficient * along[id(directions)] * keys.pair(asked.queries).mT
        self._scores[torch.from_numpy(block.slots)] = scores

    def merge(self, other: "ScoresFold") -> None:
        self._scores += other._scores  # of other slots

    def finish(self) -> Tensor:
        return self._scores


class Strengths:
    """What each slot's attention weight is multiplied by: the size |c_t| ||e_t|| of what it adds."""

    def __init__(self, use: Use, of: ParameterCoefficients) -> None:
        self._use, self._of = use, of

    def __call__(self, block: Block) -> Tensor:
        """Return the strength of each slot: (slots,)."""
        values = block.values.double()
        # The squares of tiny values are 0 even in float64: the largest entry of each is taken out first.
        largest = values.abs().amax(dim=1)
        norms: Tensor = torch.linalg.vector_norm(values / largest.where(largest > 0, 1.0)[:, None], dim=1) * largest
        return torch.from_numpy(self._of.of(block, self._use)).abs() * norms

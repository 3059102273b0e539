"""Estimate influence from a recording alone: what outputs would have been, had an example not been trained on.

    estimate(view, asked, visits, tests)        # (tests, visits): output with a visit, less output without it

Two estimates, each good at what the other is not, brought to one scale and averaged. Both come from one walk back
through the training, with the adjoint of the optimiser: R_i is what the output gains by the gradient of step i.

**Whitened contributions.** A contribution, < R_i, e_i x_i^T > with R_i along g q^T, counts how near a slot's key is to
the query. Others that are as near would have made up for it: so q is whitened by the second moment of all keys.

**The compressed adjoint.** What a visit has added is followed through all later steps, in which others corrected it:

    tau_i = < R_i, e_i x_i^T >
    pW   += n F_j tau_j e_j x_j^T       for all slots j of step i, before the next one back

where F = u^T (diag p - p p^T) u / |u|^4 is the curvature of softmax cross-entropy along u = p - y, the error at the
output, known from the errors that were recorded. The adjoint stays g q^T and slots, so that no matrix is made: products
of g q^T with slots are exact, those of slots with slots go through some hundred features (moments.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import Step
from dualform.dual.coefficients import rule_of
from dualform.dual.rebuilt import sharing
from dualform.errors import QueryError, listing
from dualform.influence.moments import Features, Moments, is_followed, key_rows, second_moments
from dualform.influence.visits import Visits
from dualform.influence.walk import LayerStep, walk_back
from dualform.kinds import paired_with
from dualform.slots import Block, View
from dualform.store import Layer

FEATURES = 512  # of a layer
_PRODUCTS = 1 << 23  # of slots and queries, made at once
_TINY = 1e-30
_ROUNDING = 1e-2  # of the sum of a row's sizes, that its sum may be off
_ROUNDED = 1e-5  # what rounding leaves of a probability
_LOOKED_AT = 4  # steps, whose errors tell what the loss is
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """What is asked of a layer: queries, and for each the gradient of the output at the layer's own output."""

    queries: Tensor  # (queries, d_in)
    directions: Tensor  # (queries, d_out)
    owners: Tensor  # (queries,): the test input that each belongs to


@dataclass(frozen=True)
class Estimate:
    """Influence of visits on outputs, and what a reader should know of it."""

    scores: Tensor  # (tests, visits), float32
    notes: Sequence[str]


def estimate(view: View, asked: Mapping[str, Asked], visits: Visits, tests: int, progress: Progress) -> Estimate:
    """Estimate the influence of all visits on the outputs of some tests."""
    left_out = [name for name in asked if rule_of(view.run, view.run.layers[name]).matrices]
    names, output = [name for name in asked if name not in left_out], str(visits.layer)
    if not names:
        raise QueryError(
            "all layers were trained by Muon, whose steps are not followed back: nor are they by method='exact'; "
            "memory.retrain is what is left"
        )
    why_not = f"layer {output!r} was trained by Muon" if output in left_out else why_no_curvature(view, output)
    moments = second_moments(view, [name for name in names if is_followed(view.run.layers[name])])
    layers = {name: _FollowedLayer(view.run.layers[name], asked[name], moments.get(name), tests) for name in names}
    notes = _notes(view, names, left_out, [name for name in names if name not in moments])
    whitened = torch.zeros(tests, len(visits))
    adjoint = torch.zeros(tests, len(visits))
    for numbers, steps in walk_back(view, names):
        of_step = visits.of(numbers)
        count = of_step.stop - of_step.start
        for name, layer in layers.items():
            places = torch.from_numpy(visits.places(numbers, steps[name].blocks))
            white, corrected = layer.take(steps[name], places, count)
            whitened[:, of_step] += white
            adjoint[:, of_step] += corrected
        if why_not is None and count:
            curved = curvature(steps[output].blocks) * adjoint[:, of_step]  # (tests, visits of the step)
            for layer in layers.values():
                layer.correct(curved)
        progress(view.selection.until - numbers.start, view.selection.until)
    shared = [name for name, layer in layers.items() if layer.shared]
    if shared:
        notes.append(f"slots of {listing(shared)} that belong to no single example are in nobody's influence")
    if why_not is not None:
        notes.append(f"by whitened contributions alone, whose unit is none of the output's: {why_not}")
        return Estimate(whitened, notes)
    return Estimate(_averaged(adjoint, whitened, visits), notes)


def _notes(view: View, names: Sequence[str], left_out: Sequence[str], plain: Sequence[str]) -> list[str]:
    """Return what an estimate leaves out."""
    layers, notes = {name: view.run.layers[name] for name in names}, []
    if left_out:
        notes.append(f"without {listing(left_out)}, which Muon has trained: its steps are not followed back")
    if plain:
        notes.append(f"what went through {listing(plain)} counts as it was added, neither whitened nor corrected")
    tied = [name for name, layer in layers.items() if len(sharing(view.run.manifest, layer)) > 1]
    if tied:
        notes.append(f"of weights that {listing(tied)} share, each layer's slots are followed through that layer alone")
    lines = {name: [view.run.ledger(use.parameter.name) for use in layer.trained] for name, layer in layers.items()}
    unlike = [name for name, own in lines.items() if not all(map(partial(np.array_equal, own[0]), own))]
    if unlike:
        notes.append(f"parameters of {listing(unlike)} had options of their own: all are followed by the first one's")
    return notes


class _FollowedLayer:
    """The adjoint of one layer's parameters: g q^T, times numbers; and slots, by their features."""

    def __init__(self, layer: Layer, asked: Asked, moments: Moments | None, tests: int) -> None:
        self._layer, self._tests = layer, tests
        self._directions, self._owners = asked.directions.float(), asked.owners
        self._pairs = [paired_with(use, asked.queries.double()) for use in layer.trained]
        self.features: Features | None = None
        self._own, self._others = _Recursion(torch.ones(())), _Recursion(torch.zeros(()))
        self._made: list[tuple[Tensor, Tensor]] = []  # features of the slots of this step, and whose they are
        if moments is not None:
            queries = self._summed_up(torch.cat(self._pairs, dim=1))
            self._queries, self._white = queries.float(), moments.whitened(queries).float()
            self.features = moments.features(FEATURES)
            self._others = _Recursion(torch.zeros(len(self.features.row), tests))
        self.shared = False  # whether some slots belong to no single example
        self._one_each = torch.equal(self._owners, torch.arange(tests))

    def _summed_up(self, queries: Tensor) -> Tensor:
        """Return queries; of a test with more of them than the layer has outputs, one for each output instead."""
        d_out = self._directions.shape[1]
        if len(queries) <= self._tests * d_out:
            return queries
        own = [self._owners == test for test in range(self._tests)]
        maps = torch.stack([self._directions[of_test].double().mT @ queries[of_test] for of_test in own])
        self._directions = torch.eye(d_out).repeat(self._tests, 1)
        self._owners = torch.arange(self._tests).repeat_interleave(d_out)
        return maps.flatten(0, 1)  # (tests x d_out, width)

    def take(self, of: LayerStep, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Follow one step back; return what each visit of it has, whitened and followed: (tests, visits)."""
        whitened, followed = torch.zeros(self._tests, count), torch.zeros(self._tests, count)
        self._made = []
        if of.step is None:
            return whitened, followed
        own, others = self._own.back(of.step), self._others.back(of.step)
        first = 0
        for block in of.blocks:
            index = places[first : first + len(block)]
            first += len(block)
            white, near, corrected = self._products(of, block, index, others)
            of_one = index >= 0
            self.shared |= not bool(of_one.all())
            whitened.index_add_(1, index[of_one], (own * white)[of_one].mT)
            followed.index_add_(1, index[of_one], (own * near + corrected)[of_one].mT)
        return whitened, followed

    def _products(
        self, of: LayerStep, block: Block, index: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return products with whitened and plain queries, and with what other slots have left: (slots, tests)."""
        factor = torch.from_numpy(block.factors(self._layer.trained[0])).float()[:, None]
        values = block.values.float()
        scaled = (values if of.by_row is None else values * of.by_row.float()) * factor
        if self.features is None:
            near = self._near(of, block, scaled)
            return near, near, 0.0
        keys = key_rows(self._layer, block)
        scaled_keys = keys if of.by_key is None else keys * of.by_key.float()
        size = max(1, _PRODUCTS // len(self._queries))
        parts = [
            (self._by_test(along * (of_keys @ self._white.mT)), self._by_test(along * (of_keys @ self._queries.mT)))
            for of_values, of_keys in zip(scaled.split(size), scaled_keys.split(size), strict=True)
            for along in [of_values @ self._directions.mT]  # (slots, queries)
        ]
        white, near = (torch.cat(which) for which in zip(*parts, strict=True))
        self._made.append((self.features.of(keys, values), index))
        return white, near, self.features.of(scaled_keys, scaled) @ others

    def _near(self, of: LayerStep, block: Block, scaled: Tensor) -> Tensor:
        """Return products with plain queries, of keys that are no rows of numbers or come in groups: (slots, tests)."""
        near = torch.zeros(len(block), len(self._owners))
        first = 0
        for use, queries in zip(self._layer.trained, self._pairs, strict=True):
            own = queries.float()
            if of.by_key is not None:
                own = own * of.by_key[first : first + use.width].float().repeat(use.groups)
            first += use.width
            near += block.keys.of(use).contributions(scaled, own, self._directions)
        return self._by_test(near)

    def correct(self, curved: Tensor) -> None:
        """Take up the slots of this step, given what the curvature makes of each visit: (tests, visits)."""
        for made, index in self._made:
            of_one = index >= 0
            self._others.weight += made[of_one].mT @ curved[:, index[of_one]].mT

    def _by_test(self, by_query: Tensor) -> Tensor:
        """Sum up (slots, queries) over the queries of each test."""
        if self._one_each:
            return by_query
        return by_query.new_zeros(len(by_query), self._tests).index_add_(1, self._owners, by_query)


class _Recursion:
    """The adjoint of a parameter and of its momentum, back through steps: of numbers, or of columns of features."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self._momentum = weight, torch.zeros_like(weight)

    def back(self, step: Step) -> Tensor:
        """Return the adjoint of the gradient of the step before those followed so far."""
        momentum = self._momentum - step.beta * self.weight
        gradient: Tensor = step.sign * (step.intake * momentum - step.alpha * self.weight)
        self.weight = step.keep * self.weight + (step.decay / step.sign) * gradient
        self._momentum = step.carry * momentum
        return gradient


def curvature(blocks: Sequence[Block]) -> Tensor:
    """Return n F of each visit of a step: the curvature of its loss along its error, as the step counts it."""
    errors = torch.cat([block.values.double() for block in blocks])
    u = softmax_errors(errors)
    p = u.clone()
    p[torch.arange(len(u)), u.argmin(dim=1)] += 1
    p = p.clamp(min=0)
    curved = (p * u.square()).sum(dim=1) - (p * u).sum(dim=1).square()
    return (_counted(errors) * curved / u.square().sum(dim=1).square().clamp(min=_TINY)).float()


def softmax_errors(errors: Tensor) -> Tensor:
    """Return p - y of each row of a step, whose loss is their mean."""
    return errors * _counted(errors)


def _counted(errors: Tensor) -> int:
    """Return over how many rows a step's loss is a mean: those that were left out of it have no error at all."""
    return int(errors.any(dim=1).sum())


def why_no_curvature(view: View, layer: str) -> str | None:
    """Return why the errors of the output layer are not those of a mean of softmax cross-entropies; None: they are."""
    slots, until = view.slots(layer), view.selection.until
    if slots.layer.d_out < 2:
        return f"layer {layer!r} has a single output, so that the loss is no cross-entropy"
    for _, chapter in (view.run.chapters[0], view.run.chapters[-1]):
        for passes in list(slots.passes_of_all(chapter).values())[:_LOOKED_AT]:
            u = softmax_errors(
                torch.cat([slots.block(rows).values.double() for rows in passes])
            )  # torch has rounded it
            slack = _ROUNDING * u.abs().sum(dim=1) + _ROUNDED
            if bool((u.sum(dim=1).abs() > slack).any()) or bool(((u < -slack[:, None]).sum(dim=1) > 1).any()):
                return f"the errors of layer {layer!r} are not those of a softmax cross-entropy"
            if bool((u.amin(dim=1) < -1 - _ROUNDING).any()):
                return "the loss is not a mean over the examples of a step"
    return None if until else "no step was recorded"


def _averaged(adjoint: Tensor, whitened: Tensor, visits: Visits) -> Tensor:
    """Return the mean of both, in the unit of the first: both have the same size over examples, test by test."""
    number, first = visits.examples
    of_one = torch.from_numpy(np.flatnonzero(number >= 0))
    index = torch.from_numpy(number)[of_one]

    def size(scores: Tensor) -> Tensor:
        own = scores[:, of_one].double()
        summed = torch.zeros(len(scores), len(first), dtype=torch.float64).index_add_(1, index, own)
        return summed.square().mean(dim=1, keepdim=True).sqrt()

    scale = size(adjoint) / size(whitened).clamp(min=_TINY)
    return (adjoint + whitened * scale.float()) / 2

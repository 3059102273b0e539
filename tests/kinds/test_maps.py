"""Each kind against dense float64 formulas: the map, its adjoint, what keys are multiplied with, and the probe.

A layer of a kind is described here together with the module it stands for, and its keys as dense rows. All else is
asked of the kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dualform import nn as dualnn
from dualform.kinds import KINDS, Kind, Probe, candidates, kind_of, paired_with
from dualform.kinds.keys import Grouped
from dualform.store.schema import Layer, Parameter, Use
from tests.kinds.test_every_kind import CASES as WHOLE_TRAININGS
from tests.kinds.test_every_kind import Plain, Transposed

SIZES = st.integers(1, 7)
SLOTS = st.integers(1, 9)
FEW = settings(max_examples=settings().max_examples // 2)


@dataclass(frozen=True)
class Case:
    """A layer with some slots: its keys as they are stored, and the same as dense rows (slots, d_in)."""

    layer: Layer
    kind: Kind
    parameters: dict[str, Tensor]
    rows: Tensor
    keys: Tensor
    values: Tensor  # (slots, d_out)
    queries: Tensor  # (queries, d_in)
    call: Callable[[Tensor], Tensor]  # what torch's module makes of queries,
    after: Callable[[Tensor], Tensor]  # given the layer's output
    draw: Callable[..., Tensor]  # more random numbers

    def dense(self, use: Use) -> Tensor:
        """The keys as a use sees them: (slots, width)."""
        return torch.ones(len(self.keys), 1).double() if use.columns is None else self.keys[:, slice(*use.columns)]

    def asked(self, use: Use) -> Tensor:
        """The queries as a use sees them: (queries, width)."""
        return (
            torch.ones(len(self.queries), 1).double() if use.columns is None else self.queries[:, slice(*use.columns)]
        )


def linear(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return nn.Linear(d_in, d_out, bias=bias)


def embedding(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return nn.Embedding(d_in, d_out)


def gates(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return dualnn.LSTM(d_in, d_out, bias=bias)


def reset_gates(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return dualnn.GRU(d_in, d_out, bias=bias)


def plain_recurrence(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return dualnn.RNN(d_in, d_out, bias=bias)


def projections(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return dualnn.MultiheadAttention(d_in, 1, bias=bias, kdim=d_out, vdim=d_out)  # one weight, or three


def transposed(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return Transposed(d_in, d_out)


def plain(d_in: int, d_out: int, bias: bool) -> nn.Module:
    return Plain(d_in, d_out + (d_in == d_out == 1))  # one number is its own transpose


MODULES = {
    "Linear": linear, "Embedding": embedding, "LSTM": gates, "GRU": reset_gates, "RNN": plain_recurrence,
    "Attention": projections, "TransposedLinear": transposed, "TriedLinear": plain,
}  # fmt: skip


def torchs_recurrence(module: nn.RNNBase, queries: Tensor) -> Tensor:
    """What torch's own module says after one step, from a cell of zeros: queries are [input, hidden state]."""
    lstm = isinstance(module, nn.LSTM)
    torchs = (nn.LSTM if lstm else nn.RNN)(module.input_size, module.hidden_size, bias=module.bias).double()
    torchs.load_state_dict(module.state_dict())
    x, h = queries.split([module.input_size, module.hidden_size], dim=1)
    output: Tensor = torchs(x[None], (h[None], torch.zeros_like(h)[None]) if lstm else h[None])[0][0]
    return output


def torchs_gru(module: nn.GRU, which: str, queries: Tensor) -> Tensor:
    """What torch's own GRU says after one step, of an input and no state, or of no input and a state."""
    torchs = nn.GRU(module.input_size, module.hidden_size, bias=module.bias).double()
    torchs.load_state_dict(module.state_dict())
    x, h = (queries.new_zeros(len(queries), size) for size in (module.input_size, module.hidden_size))
    x, h = (queries, h) if which == "ih" else (x, queries)
    output: Tensor = torchs(x[None], h[None])[0][0]
    return output


def after_the_gru(module: nn.GRU, which: str, queries: Tensor, activations: Tensor) -> Tensor:
    """The same, given what one of the two maps makes; the other has a key of zeros."""
    other = "hh" if which == "ih" else "ih"
    beside = getattr(module, f"bias_{other}_l0") if module.bias else torch.zeros(activations.shape[1]).double()
    both = activations, beside.detach().expand_as(activations)
    u, v = (one.chunk(3, dim=1) for one in (both if which == "ih" else both[::-1]))
    h = torch.zeros_like(u[0]) if which == "ih" else queries
    z = (u[1] + v[1]).sigmoid()
    return (1 - z) * (u[2] + (u[0] + v[0]).sigmoid() * v[2]).tanh() + z * h


def torchs_projections(module: dualnn.MultiheadAttention, queries: Tensor) -> Tensor:
    """Queries, keys and values, side by side."""
    if module.packed:
        return nn.functional.linear(queries, module.in_proj_weight, module.in_proj_bias)
    inputs = queries.split([module.embed_dim, module.kdim, module.vdim], dim=1)
    weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    output = torch.cat([x @ weight.mT for x, weight in zip(inputs, weights, strict=True)], dim=1)
    return output if module.in_proj_bias is None else output + module.in_proj_bias


def after_the_gates(activations: Tensor) -> Tensor:
    """The same, given the activations of the gates."""
    into, _, candidate, out = activations.chunk(4, dim=1)
    return out.sigmoid() * (into.sigmoid() * candidate.tanh()).tanh()


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    module = MODULES[kind](draw(SIZES), draw(SIZES), draw(st.booleans())).double()

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    found = draw(st.sampled_from([one for one in candidates(nn.Sequential(module)) if one.kind.name == kind]))
    parameters = {name: random(*one.shape) for name, one in found.parameters.items()}
    module.load_state_dict(parameters, strict=False)  # attention has an output layer, a GRU another map, too
    optimizers = [0, *(draw(st.sampled_from([0, 0, None])) for _ in range(len(parameters) - 1))]  # None: it is frozen
    uses = tuple(
        Use(Parameter(name, tuple(one.shape), optimizer), found.columns[name])
        for (name, one), optimizer in zip(parameters.items(), optimizers, strict=True)
    )
    layout = found.kind.key_layout(found.d_in)
    layer = Layer("0", kind, found.d_in, found.d_out, layout, uses)
    found.kind.check(layer)
    slots, queries = draw(SLOTS), random(draw(SLOTS), found.d_in)
    rows = keys = random(slots, found.d_in)
    call: Callable[[Tensor], Tensor] = module
    after: Callable[[Tensor], Tensor] = nn.Identity()
    if isinstance(module, nn.Embedding):
        rows = torch.randint(found.d_in, (slots, 1), generator=generator)
        keys = torch.eye(found.d_in).double()[rows[:, 0]]
        queries = torch.eye(found.d_in).double()
        call = lambda queries: module(queries.argmax(dim=1))  # noqa: E731
    elif isinstance(module, dualnn.LSTM | dualnn.RNN):
        call, after = partial(torchs_recurrence, module), after_the_gates if kind == "LSTM" else torch.tanh
    elif isinstance(module, dualnn.GRU):
        half = found.name.rpartition(".")[2]
        call, after = partial(torchs_gru, module, half), partial(after_the_gru, module, half, queries)
    elif isinstance(module, dualnn.MultiheadAttention):
        call = partial(torchs_projections, module)
    values = random(slots, found.d_out)
    if isinstance(module, dualnn.MultiheadAttention) and not module.packed:  # a slot is a query, a key or a value
        widths = torch.tensor([module.embed_dim, module.kdim, module.vdim])
        which = torch.arange(slots)[:, None] % 3  # (slots, 1)
        rows = keys = keys * (torch.arange(3).repeat_interleave(widths) == which)
        values = values * (torch.arange(3).repeat_interleave(module.embed_dim) == which)
    return Case(layer, kind_of(layer), parameters, rows, keys, values, queries, call, after, random)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def for_each(kind: str, check: Callable[[Case], None]) -> None:
    FEW(given(cases(kind))(check))()


each_kind = pytest.mark.parametrize("kind", MODULES)


def test_every_registered_kind_is_tested_here_or_in_whole_trainings() -> None:
    assert {*MODULES, *WHOLE_TRAININGS} == {*KINDS}


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), SLOTS)
def test_keys_in_groups_are_dense_keys_of_which_each_output_sees_some(
    data: st.DataObject, groups: int, width: int, outputs: int, slots: int
) -> None:
    """The dense map of a grouped one is zero outside of its blocks; so is its gradient, once masked."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
    rows, values, queries, directions = (
        torch.randn(n, m, generator=generator, dtype=torch.float64)
        for n, m in ((slots, groups * width), (slots, groups * outputs), (2, groups * width), (2, groups * outputs))
    )
    keys = Grouped(rows.unflatten(1, (groups, width)))
    inside = torch.block_diag(*[torch.ones(outputs, width)] * groups).double()  # (d_out, d_in)

    def packed(dense: Tensor) -> Tensor:
        """The blocks of a dense map, one below the other: (..., d_out, width)."""
        blocks = dense.unflatten(-1, (groups, width)).unflatten(-3, (groups, outputs))
        return torch.stack([blocks[..., g, :, g, :] for g in range(groups)], dim=-3).flatten(-3, -2)

    each = torch.einsum("to,ti->toi", values, rows) * inside
    assert_close(keys.outers(values), packed(each))
    assert_close(keys.outer(values), packed(each.sum(0)))
    assert_close(keys.outer_squares(values), packed(each.square().sum(0)))
    assert_close(keys.pair(queries), queries @ rows.mT)
    assert_close(
        keys.contributions(values, queries, directions), torch.einsum("toi,no,ni->tn", each, directions, queries)
    )
    vectors = torch.randn(width, 2, generator=generator, dtype=torch.float64)
    assert_close(keys.seen(values, vectors), packed(each.sum(0)) @ vectors)
    others = torch.randn(groups * outputs, 2, generator=generator, dtype=torch.float64)
    assert_close(keys.seen_transposed(values, others), packed(each.sum(0)).mT @ others)
    coefficient = torch.randn(groups * outputs, width, generator=generator, dtype=torch.float64)
    spread = torch.cat([coefficient] * groups, dim=1) * inside
    assert_close(keys.effective(coefficient, queries[0]), torch.einsum("oi,ti,i->to", spread, rows, queries[0]))


@each_kind
def test_a_parameter_as_a_map_and_back_is_itself(kind: str) -> None:
    def check(case: Case) -> None:
        for use in case.layer.uses:
            parameter = case.parameters[use.parameter.name]
            assert case.kind.shape(case.layer, use) == tuple(parameter.shape)
            for several in (parameter, case.draw(3, *parameter.shape)):
                found = case.kind.as_map(use, several)
                assert found.shape[-2:] == (case.layer.d_out, use.width)
                torch.testing.assert_close(case.kind.from_map(use, found), several, rtol=0, atol=0)
                if parameter.numel() == case.layer.d_out * use.width:  # else there are rows that it has not
                    assert found.untyped_storage().data_ptr() == several.untyped_storage().data_ptr()  # seen in place

    for_each(kind, check)


@each_kind
def test_applied_to_queries_the_maps_are_the_module(kind: str) -> None:
    def check(case: Case) -> None:
        output = torch.zeros(len(case.queries), case.layer.d_out).double()
        for use in case.layer.uses:
            found = case.kind.as_map(use, case.parameters[use.parameter.name])
            output += case.kind.apply(use, found, case.queries)
        assert_close(case.after(output), case.call(case.queries).detach())

    for_each(kind, check)


@each_kind
def test_queries_are_what_keys_are_paired_with(kind: str) -> None:
    def check(case: Case) -> None:
        for use in case.layer.uses:
            assert_close(paired_with(use, case.queries), case.asked(use))
            pairs = case.kind.keys(case.layer, case.rows).of(use).pair(paired_with(use, case.queries))
            assert_close(pairs, case.asked(use) @ case.dense(use).mT)
        into = torch.empty(len(case.queries), len(case.keys)).double()
        case.kind.pair_into(case.queries, case.rows, into)
        assert_close(into, case.queries @ case.keys.mT)
        assert_close(case.kind.keys(case.layer, case.rows).pair(case.queries), into)

    for_each(kind, check)


@each_kind
def test_products_of_keys_are_those_of_dense_rows(kind: str) -> None:
    def check(case: Case) -> None:
        keys, values = case.kind.keys(case.layer, case.rows), case.values
        assert len(keys) == len(values)
        assert keys.nonnegative == bool((case.keys >= 0).all())
        for use in case.layer.uses:
            own, dense = keys.of(use), case.dense(use)
            assert_close(own.outer(values), torch.einsum("to,ti->oi", values, dense))
            assert_close(own.outer_squares(values), torch.einsum("to,ti->oi", values**2, dense**2))
            units = case.draw(5, use.width)
            for query in case.asked(use):
                assert_close(own.effective(units, query), torch.einsum("ui,ti,i->tu", units, dense, query))

    for_each(kind, check)


@each_kind
def test_keys_are_summed_up_by_group(kind: str) -> None:
    def check(case: Case) -> None:
        keys, slots = case.kind.keys(case.layer, case.rows), len(case.keys)
        for groups in (3, 300):  # few by a product, many by scattered adding
            codes = np.arange(slots) * 7 % groups
            for use in case.layer.uses:
                for factors in (None, case.draw(slots).abs()):
                    start = case.draw(groups, use.width)
                    expected = start.clone()
                    for slot, code in enumerate(codes):
                        expected[code] += (1 if factors is None else factors[slot]) * case.dense(use)[slot]
                    keys.of(use).add_to(start, codes, factors)
                    assert_close(start, expected)

    for_each(kind, check)


@each_kind
def test_the_outer_product_is_the_adjoint_of_the_map(kind: str) -> None:
    """<outer(e, x), P> = sum_t <e_t, A(P, x_t)>: it is the gradient, as autograd has it."""

    def check(case: Case) -> None:
        keys = case.kind.keys(case.layer, case.rows)
        for use in case.layer.uses:
            parameter = case.parameters[use.parameter.name].clone().requires_grad_()
            output = case.kind.apply(use, case.kind.as_map(use, parameter), case.keys)
            (gradient,) = torch.autograd.grad((output * case.values).sum(), parameter)
            assert_close(case.kind.from_map(use, keys.of(use).outer(case.values)), gradient)

    for_each(kind, check)


@each_kind
def test_a_gradient_applied_to_a_vector_is_attention_over_slots(kind: str) -> None:
    """apply(G, r) = sum_t pair(x_t, r) e_t, with G = outer(e, x): what the probe of the audit rests on."""

    def check(case: Case) -> None:
        vectors = case.draw(4, case.layer.d_in)
        for use in case.layer.uses:
            keys = case.kind.keys(case.layer, case.rows).of(use)
            attended = keys.pair(paired_with(use, vectors)) @ case.values
            assert_close(case.kind.apply(use, keys.outer(case.values), vectors), attended)

    for_each(kind, check)


@each_kind
def test_the_probe_sees_the_same_in_gradients_and_in_rows(kind: str) -> None:
    def check(case: Case) -> None:
        probe = Probe(case.kind, case.layer, torch.Generator().manual_seed(0))
        gradients = gradients_of(case, case.values)
        rows = probe.of_rows(case.rows, case.values)
        assert rows.shape == (sum(vectors * numbers for vectors, numbers in probe.layout),)
        seen = [rows[part] for part in probe.slices]
        for ours, theirs in zip(probe.of_gradients(gradients), seen, strict=True):
            assert_close(ours, theirs)
        absolute = probe.of_rows(case.rows, case.values, absolute=True)
        assert (absolute >= rows.abs() - 1e-12).all()

    for_each(kind, check)


@each_kind
def test_the_probe_sees_a_slot_that_is_missing(kind: str) -> None:
    def check(case: Case) -> None:
        probe = Probe(case.kind, case.layer, torch.Generator().manual_seed(0))
        gradients = gradients_of(case, case.values)
        rows = probe.of_rows(case.rows[1:], case.values[1:])
        for part, (ours, use) in enumerate(zip(probe.of_gradients(gradients), case.layer.trained, strict=True)):
            lost = case.values[0].norm() * case.dense(use)[0].norm()
            assert (ours - rows[probe.slices[part]]).norm() >= 1e-9 * lost

    for_each(kind, check)


def gradients_of(case: Case, values: Tensor) -> list[Tensor]:
    """Dense, of each trained use."""
    products = {use: torch.einsum("to,ti->oi", values, case.dense(use)) for use in case.layer.trained}
    return [case.kind.from_map(use, product).contiguous() for use, product in products.items()]

"""Definition 2.1 to Corollary 1, and the remarks, as properties of random tensors."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dualform.duality import attention, attention_matrix, attention_weights, dual_layer, memory_of

sizes = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))


def memory(slots: int, d_in: int, d_out: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (slots, d_in), (slots, d_out), (3, d_in)
    keys, values, query = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes)
    return keys, values, query


@given(sizes)
def test_attention_is_the_weighted_sum_of_values(size: tuple[int, int, int, int]) -> None:
    keys, values, query = memory(*size)
    expected = torch.zeros(len(query), values.shape[1], dtype=torch.float64)
    for i, q in enumerate(query):
        for key, value in zip(keys, values, strict=True):
            expected[i] += torch.dot(key, q) * value
    assert_close(attention(keys, values, query), expected)


@given(sizes)
def test_lemma_attention_is_one_matrix(size: tuple[int, int, int, int]) -> None:
    keys, values, query = memory(*size)
    assert_close(query @ attention_matrix(keys, values).mT, attention(keys, values, query))


@given(sizes)
def test_proposition_every_linear_map_is_a_memory(size: tuple[int, int, int, int]) -> None:
    _, d_in, d_out, seed = size
    weight = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    query = memory(*size)[2]
    assert_close(attention(*memory_of(weight), query), query @ weight.mT)
    assert_close(attention_matrix(*memory_of(weight)), weight)


def test_corollary_gradient_descent_is_attention_over_its_own_past() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3, bias=False, dtype=torch.float64)
    initial, keys, values = layer.weight.detach().clone(), [], []
    for _ in range(5):
        x = torch.randn(2, 4, dtype=torch.float64)
        y = layer(x)
        y.retain_grad()
        y.square().sum().backward()
        assert y.grad is not None
        keys.append(x)
        values.append(-0.1 * y.grad)
        assert layer.weight.grad is not None
        with torch.no_grad():
            layer.weight -= 0.1 * layer.weight.grad
        layer.weight.grad = None
    query = torch.randn(2, 4, dtype=torch.float64)
    assert_close(dual_layer(initial, torch.cat(keys), torch.cat(values), query), layer(query).detach())


@given(sizes)
def test_remark_order_of_slots_does_not_matter(size: tuple[int, int, int, int]) -> None:
    keys, values, query = memory(*size)
    order = torch.randperm(len(keys))
    assert_close(attention(keys[order], values[order], query), attention(keys, values, query))


def test_remark_an_orthogonal_query_gets_the_initial_part_only() -> None:
    keys = torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    query = torch.tensor([[0.0, 0.0, 5.0]])
    initial = torch.randn(2, 3)
    assert_close(attention_weights(keys, query), torch.zeros(1, 2))
    assert_close(dual_layer(initial, keys, torch.randn(2, 2), query), query @ initial.mT)

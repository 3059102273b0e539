"""The theory: a linear layer and an attention memory are the same function.

Definition 2.1 to Corollary 1 of Irie, Csordás & Schmidhuber (2022) as pure functions of tensors.
Rows are slots, so a memory is `keys` (slots, d_in) and `values` (slots, d_out), and a `query` is
(..., d_in). The paper writes slots as columns; nothing else differs.

    attention(keys, values, query)  ==  query @ attention_matrix(keys, values).T
"""

from torch import Tensor, eye


def attention_weights(keys: Tensor, query: Tensor) -> Tensor:
    """How strongly each slot answers the query: the plain dot product, signed and unnormalised."""
    return query @ keys.mT  # (..., slots)


def attention(keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """Definition 2.1: the sum of all values, each times its slot's attention weight."""
    return attention_weights(keys, query) @ values  # (..., d_out)


def attention_matrix(keys: Tensor, values: Tensor) -> Tensor:
    """Lemma 2.2: the one matrix that does what attention over this memory does."""
    return values.mT @ keys  # (d_out, d_in)


def memory_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Proposition 1, read backwards: keys and values whose attention is this linear map.

    One of infinitely many (Remark 3.4): the unit vectors as keys, the weight's columns as values.
    """
    return eye(weight.shape[1], dtype=weight.dtype, device=weight.device), weight.mT


def dual_layer(initial: Tensor, keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """Corollary 1: a layer trained by gradient descent, as initial weights plus attention.

    `values` carry the optimiser's coefficients already: c_t e_t, which is -lr dL/dy for plain SGD.
    """
    return query @ initial.mT + attention(keys, values, query)  # (..., d_out)

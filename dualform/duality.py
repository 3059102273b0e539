"""State the theory: a linear layer and an attention memory are the same function.

Definition 2.1 to Corollary 1 of Irie, Csordás & Schmidhuber (2022) as pure functions of tensors.
Rows are slots, so a memory is `keys` (slots, d_in) and `values` (slots, d_out), and a `query` is
(..., d_in). The paper writes slots as columns; nothing else differs.

    attention(keys, values, query)  ==  query @ attention_matrix(keys, values).T
"""

from torch import Tensor, eye


def attention_weights(keys: Tensor, query: Tensor) -> Tensor:
    """Return the plain dot product of each slot's key and the query, signed and unnormalised.

    Args:
        keys: (slots, d_in).
        query: (..., d_in).

    Returns:
        (..., slots).
    """
    return query @ keys.mT  # (..., slots)


def attention(keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """Return the sum of all values, each times its slot's attention weight: Definition 2.1.

    Args:
        keys: (slots, d_in).
        values: (slots, d_out).
        query: (..., d_in).

    Returns:
        (..., d_out).
    """
    return attention_weights(keys, query) @ values  # (..., d_out)


def attention_matrix(keys: Tensor, values: Tensor) -> Tensor:
    """Return the matrix that does what attention over this memory does: Lemma 2.2.

    Args:
        keys: (slots, d_in).
        values: (slots, d_out).

    Returns:
        (d_out, d_in).
    """
    return values.mT @ keys  # (d_out, d_in)


def memory_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values whose attention is a linear map: Proposition 1, read backwards.

    They are one choice of infinitely many (Remark 3.4): the unit vectors as keys, the weight's columns as values.

    Args:
        weight: (d_out, d_in).
    """
    return eye(weight.shape[1], dtype=weight.dtype, device=weight.device), weight.mT


def dual_layer(initial: Tensor, keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """Return the output of a layer trained by gradient descent, as initial weights plus attention: Corollary 1.

    Args:
        initial: The weights before training, (d_out, d_in).
        keys: (slots, d_in).
        values: (slots, d_out), with the optimiser's coefficients: c_t e_t, which is -lr dL/dy for plain SGD.
        query: (..., d_in).

    Returns:
        (..., d_out).
    """
    return query @ initial.mT + attention(keys, values, query)  # (..., d_out)

"""Put a question about a layer's output to the slots of a layer that uses the same parameters: itself, or another one.

What a slot (x, e) of layer B adds to a direction g of the output of layer A at a query q is the product of what it adds
to the parameter with g q^T, the adjoint of A in the parameter. If B has the parameter the other way round, as a head
that is tied to an embedding, that is the product with q g^T, so that query and direction change places:

    (e . g)(x . q)      or, the other way round,      (e . q)(x . g)
"""

from dataclasses import dataclass

from torch import Tensor

from dualform.dual.sight import shared_uses, turned
from dualform.kinds import paired_with
from dualform.store import Layer, Use


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries and directions, as slots of one use are multiplied with them."""

    use: Use  # of the layer that slots belong to
    queries: Tensor  # (queries, width)
    directions: Tensor  # (queries, d_out)


def asked_of(layer: Layer, user: Layer, queries: Tensor, directions: Tensor) -> list[Asked]:
    """Return what to ask of each use of the parameters that two layers share.

    Args:
        layer: The layer whose output it is about.
        user: The layer that slots belong to.
        queries: Of the first layer, (queries, d_in).
        directions: Of its output, (queries, d_out).
    """
    asked = []
    for own, theirs in shared_uses(layer, user):
        paired = paired_with(own, queries)
        swapped = turned(layer, own, user, theirs)
        asked.append(Asked(theirs, *((directions, paired) if swapped else (paired, directions))))
    return asked

"""Sum up parameters over all their uses: whoever uses a parameter adds to its gradient.

    W_until = initial W_since + momentum m_since + sum over uses, and their slots t, of c_t e_t x_t^T

A layer alone in its use of its parameters is the usual case.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dualform.kinds import kind_of
from dualform.store import Layer, Manifest, Parameter, Use


@dataclass(frozen=True)
class Rebuilt:
    """A map (d_out, width), in float64: what is left of its beginning, and what slots added."""

    initial: Tensor
    slots: Tensor

    @property
    def whole(self) -> Tensor:
        return self.initial + self.slots


def sharing(manifest: Manifest, layer: Layer) -> list[Layer]:
    """Return the layers that use a trained parameter of this one, itself first: alone, unless weights are tied."""
    users = {user.name: user for use in layer.trained for user in manifest.users[use.parameter]}
    return [layer, *(user for user in users.values() if user != layer)]


def over_all_uses(
    layers: Iterable[Layer], parameters: Iterable[Parameter], maps_of: Callable[[Layer], Mapping[Use, Tensor]]
) -> dict[Parameter, Tensor]:
    """Sum up what layers make of each parameter, given as maps; shaped like the parameter."""
    wanted = {*parameters}
    sums: dict[Parameter, Tensor] = {}
    for layer in layers:
        for use, added in maps_of(layer).items():
            if use.parameter in wanted:
                shaped = kind_of(layer).from_map(use, added)
                sums[use.parameter] = shaped if use.parameter not in sums else sums[use.parameter] + shaped
    return sums


def output_of(layer: Layer, maps: Mapping[Use, Tensor], queries: Tensor) -> Tensor:
    """Return the output of a layer with these maps, in float64: (queries, d_out)."""
    output = torch.zeros(1, 1, dtype=torch.float64)
    for use, matrix in maps.items():
        output = output + kind_of(layer).apply(use, matrix, queries)
    return output


def named_parameters(layer: Layer, maps: Mapping[Use, Tensor]) -> dict[str, Tensor]:
    """Return maps as the parameters they belong to, by name."""
    return {use.parameter.name: kind_of(layer).from_map(use, matrix) for use, matrix in maps.items()}

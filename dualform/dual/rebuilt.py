"""Parameters rebuilt from their slots, over all uses: whoever uses a parameter adds to its gradient.

W_until = initial W_since + momentum m_since + sum over uses, and their slots t, of c_t e_t x_t^T
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
    """The layers that use a trained parameter of this one, itself first: just itself, unless weights are tied."""
    own = {use.parameter for use in layer.trained}
    others = [one for one in manifest.layers if one != layer and own & {use.parameter for use in one.trained}]
    return [layer, *others]


def over_all_uses(
    layers: Iterable[Layer], parameters: Iterable[Parameter], maps_of: Callable[[Layer], Mapping[Use, Tensor]]
) -> dict[Parameter, Tensor]:
    """Sum up what layers make of each parameter, given as maps; shaped like the parameter."""
    wanted = {*parameters}
    found: dict[Parameter, Tensor] = {}
    for layer in layers:
        for use, added in maps_of(layer).items():
            if use.parameter in wanted:
                shaped = kind_of(layer).from_map(use, added)
                found[use.parameter] = shaped if use.parameter not in found else found[use.parameter] + shaped
    return found


def output_of(layer: Layer, maps: Mapping[Use, Tensor], queries: Tensor) -> Tensor:
    """What a layer with these maps, in float64, says: (queries, d_out)."""
    output = torch.zeros(1, 1, dtype=torch.float64)
    for use, found in maps.items():
        output = output + kind_of(layer).apply(use, found, queries)
    return output


def named_parameters(layer: Layer, maps: Mapping[Use, Tensor]) -> dict[str, Tensor]:
    """Maps as the parameters they belong to, by name."""
    return {use.parameter.name: kind_of(layer).from_map(use, found) for use, found in maps.items()}

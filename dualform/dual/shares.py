"""Shares: the weights due to groups of slots, so that to mute some groups is to subtract small matrices.

    shares = memory.shares(by="label")           # one reading of all slots
    shares.groups                                # a table: which group is which label
    shares.model(model, without=[9])             # memory.without(label=9).model(model), without reading anything
    shares.added("layers.2", groups=[3, 5])      # what the slots of two groups have added to a layer

Shares are those of a view's slots, with the groups of the whole run: one that has no slot in the view has added zeros.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from dualform.dual.group_weights import GroupWeight
from dualform.errors import UnknownName
from dualform.store import Parameter
from dualform.table import Table

Assemble = Callable[[nn.Module, Mapping[str, Tensor]], nn.Module]


class Shares:
    """What each group has added to every recorded layer. Made by `memory.shares`.

    `assemble` makes a copy of a model in which some parameters are given, and all others are as in the last snapshot;
    `summed_up` says that the view's parameters are in no snapshot.
    """

    def __init__(
        self,
        groups: Table,
        weights: Mapping[str, Mapping[Parameter, GroupWeight]],
        assemble: Assemble,
        *,
        summed_up: bool,
    ) -> None:
        self.groups = groups
        self._weights, self._assemble, self._summed_up = weights, assemble, summed_up

    @property
    def layers(self) -> list[str]:
        return list(self._weights)

    @property
    def nbytes(self) -> int:
        """What is held in memory."""
        return sum(weight.nbytes for layer in self._weights.values() for weight in layer.values())

    def added(self, layer: str, groups: Sequence[int]) -> dict[str, Tensor]:
        """What these groups together have added to a layer's trained parameters, in float64; groups by their row."""
        self._check_layers([layer])
        chosen = self._chosen(groups)
        return {parameter.name: weight.added(chosen) for parameter, weight in self._weights[layer].items()}

    def model(self, model: nn.Module, without: Sequence[int], layers: Sequence[str] | None = None) -> nn.Module:
        """A copy of the model in which these groups are muted, in all layers or in these: `shares.model(model, [9])`.

        The model passed gives the architecture only. Where nothing is muted, parameters are the view's own.
        """
        chosen, muted = self._chosen(without), self._check_layers(self.layers if layers is None else layers)
        parameters: dict[str, Tensor] = {}
        for name, weights in self._weights.items():
            for parameter, weight in weights.items():
                if name in muted and chosen:
                    parameters[parameter.name] = weight.whole - weight.added(chosen)
                elif self._summed_up:
                    parameters.setdefault(parameter.name, weight.whole)  # unless it is muted as another layer's
        return self._assemble(model, parameters)

    def _chosen(self, groups: Sequence[int]) -> list[int]:
        """Each group once, however often it is named."""
        for group in groups:
            if not 0 <= group < len(self.groups):
                raise UnknownName("group", group, range(len(self.groups)))
        return sorted(set(groups))

    def _check_layers(self, layers: Sequence[str]) -> Sequence[str]:
        for layer in layers:
            if layer not in self._weights:
                raise UnknownName("layer", layer, self._weights)
        return layers

    def __repr__(self) -> str:
        what = f"{len(self.groups):,} groups by {', '.join(self.groups.columns)}"
        return f"Shares({what}, {len(self._weights):,} layers, {self.nbytes / 1e6:,.1f} MB)"

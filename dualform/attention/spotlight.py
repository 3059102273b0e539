"""Answer queries, per layer, as tables a person can read.

    spotlight = memory.attend(model, images)
    layer = spotlight["layers.2"]
    layer.top(10)                      # the training slots with the highest attention weights
    layer.total(by="label")            # attention summed over groups of slots
    layer.output()                     # the layer's output, from the slots alone
    layer.contribution(3).top(10)      # the slots that add most to class 3
    layer.per_input().top(3, per="id") # training examples, summed over all positions of both

Each call reads the slots once; `collect` answers several questions in one reading. After a few queries to a
layer, sums and a sketch of its keys are kept, and further ones read little. A question can be kept and asked
of many layers: `Top(500, by="label")`, `Total(by="label")`, `Timeline(60)`, `Output()`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualform.attention.contribution import LayerContribution, LayerEffective
from dualform.attention.directions import Directions, Target, as_direction
from dualform.attention.input_rows import InputRows
from dualform.attention.plan import Question
from dualform.attention.positions import position_pairs
from dualform.attention.questions import Answers, Output
from dualform.dual.rebuilt import output_of, sharing
from dualform.engine import in_one_pass
from dualform.errors import QueryError, UnknownName
from dualform.slots import condition

FindDirections = Callable[[Target], Directions]


@dataclass(eq=False, repr=False)
class LayerSpotlight(Answers):
    """One layer's answers to all queries, by attention weights."""

    _find_directions: FindDirections | None  # towards classes, where the model is known
    _rows: InputRows | None  # which input each query is of, where the model is known

    def per_input(self) -> "LayerSpotlight":
        """Ask about whole inputs: `layer.per_input().top(3, per="id")` sums up over all positions or tokens of each.

        Attention is linear in the query, so the sum of an input's queries asks for the sum of their weights. Rows that
        are no single input's, such as those of a table of positions, are in none.

        Returns:
            The same layer, with one query for each input.
        """
        if self._rows is None:
            raise QueryError("whose queries are is known only where the model is: memory.attend(model, inputs)")
        doubt = self._rows.doubt(self.name)
        if doubt is not None:
            raise QueryError(f"whose rows of layer {self.name!r} are could not be found out: {doubt}")
        owners = torch.from_numpy(self._rows.owners(self.name))
        owned, inputs = owners >= 0, int(owners.max()) + 1
        summed = self.queries.new_zeros(max(inputs, 0), self.queries.shape[1])
        summed.index_add_(0, owners[owned], self.queries[owned])
        return LayerSpotlight(self._sources, self.name, summed, None, None)

    def position_pairs(self, number: int = 0, /, **tags: Any) -> NDArray[np.float64]:
        """Return where attention comes from: `layer.position_pairs(0, id=7)`, for a convolution.

            pairs = layer.position_pairs(0, id=7)       # (height, width, height, width)
            pairs.sum(axis=(0, 1))                      # a heat map over the training image
            pairs.sum(axis=(2, 3))                      # and one over the test image

        Args:
            number: Which of the test inputs, from 0; those of further calls of the layer follow.
            tags: Which slots to sum up, as for `memory.where`; all of them, if there is none.

        Returns:
            Attention weights by position of the test input, then by position of the training inputs, summed over
            examples and visits.
        """
        view, positions = self._sources.view, self._positions
        queries = self.queries.view(-1, prod(positions), self.queries.shape[1])  # (inputs, positions, width)
        if not 0 <= number < len(queries):
            raise QueryError(f"there are inputs 0 to {len(queries) - 1}, not {number}")
        selection = view.selection.narrowed(condition(view.run, tags, inverted=False)) if tags else view.selection
        return position_pairs(view.slots(self.name), selection, queries[number], positions)

    @property
    def _positions(self) -> tuple[int, ...]:
        """The positions of a map of the test inputs."""
        geometry = self._sources.view.run.layers[self.name].keys.geometry
        if geometry is None:
            raise QueryError(f"layer {self.name!r} has no positions: it is no convolution, or a transposed one")
        if self._rows is None or self._rows.rows is not None:
            raise QueryError("pairs of positions take all rows of a model's inputs: memory.attend(model, images)")
        return self._rows.leading(self.name)[-geometry.dimensions :]

    def output(self) -> Tensor:
        """Return the dual form's output, (queries, d_out): it equals the layer's output."""
        output: Tensor = self.collect(Output())[0]
        return output

    def initial(self) -> Tensor:
        """Return the part of the output that is due to no slot: the initial weights, as far as they are left."""
        layer, initial = self._sources.view.run.layers[self.name], self._sources.duals.initial(self.name)
        return output_of(layer, initial, self.queries).to(self.queries.dtype)

    @property
    def shares_with(self) -> list[str]:
        """The layers that share a trained parameter with this one, such as the embedding that a head is tied to."""
        manifest = self._sources.view.run.manifest
        return [layer.name for layer in sharing(manifest, self._sources.view.run.layers[self.name])[1:]]

    def contribution(self, target: Target = None, slots_of: str | None = None) -> LayerContribution:
        """Return what each slot adds to an output: `layer.contribution(3).top(10)`, `.total(by="label")`.

        Of the layer that computes the model's output, contributions and the initial part add up to that output,
        exactly. Of a layer further inside, they add up to its own output along the gradient of the target: a first
        order answer.

        Where a weight is tied, slots of all layers that use it have made it what it is. Then the initial part, the
        contributions of the layer's own slots, and those of each layer in `shares_with` add up:
        `head.contribution(3, slots_of="wte").total(by="label")`.

        Args:
            target: A class (an output of the model, counted from 0), a class for each input, or None: the class the
                model predicts. A tensor of floats, (d_out,) or (queries, d_out), is a direction of this layer's
                output.
            slots_of: The layer whose slots to ask about, one of `shares_with`; None: this one.
        """
        if slots_of is not None and slots_of not in (self.name, *self.shares_with):
            raise UnknownName(f"layer that shares a weight with {self.name!r}", slots_of, self.shares_with)
        direction = as_direction(target, len(self.queries), self._sources.view.run.layers[self.name])
        if direction is not None:
            return LayerContribution(self._sources, self.name, self.queries, direction, None, slots_of)
        if self._find_directions is None:
            raise QueryError(
                "a class can be a target only where the model is known: memory.attend(model, inputs). With "
                f"queries alone, pass a direction of the output of {self.name!r}, a tensor of floats"
            )
        towards = self._find_directions(target)
        direction, classes = towards.of(self.name), towards.classes
        return LayerContribution(self._sources, self.name, self.queries, direction, classes, slots_of)

    def effective(self, unit: int) -> LayerEffective:
        """Return each slot's attention weight as it takes effect in one output unit: sum_j R_t[unit, j] x_t[j] q[j].

        With a linear optimiser that is c_t x_t . q for all units. What the unit gets from a slot is this
        times its value: `contribution`. Slots are the layer's own, also where its weight is tied.

        Args:
            unit: An output of this layer, counted from 0.
        """
        return LayerEffective(self._sources, self.name, self.queries, unit)

    def __repr__(self) -> str:
        return f"LayerSpotlight({self.name!r}: {len(self.queries):,} queries of width {self.queries.shape[1]})"


@dataclass(frozen=True, eq=False, repr=False)
class Spotlight:
    """The queries of a test input in every recorded layer: `spotlight["layers.2"].top(10)`.

    `note` says so when the model that made the queries is not the one the memory ends with.
    """

    _layers: Mapping[str, LayerSpotlight]
    note: str | None = None

    def __getitem__(self, layer: str) -> LayerSpotlight:
        if layer not in self._layers:
            raise UnknownName("layer", layer, self._layers)
        return self._layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def collect(self, *questions: Question) -> dict[str, list[Any]]:
        """Answer questions for every layer, each layer read once; where slots are made again, all in one training."""
        layers = list(self._layers.values())
        runs = [layer.run for layer in layers[:1]]
        answers = in_one_pass(runs[0], [partial(layer.collect, *questions) for layer in layers]) if runs else []
        return dict(zip(self._layers, answers, strict=True))

    def __repr__(self) -> str:
        lines = [f"  {name}: {len(layer.queries):,} queries" for name, layer in self._layers.items()]
        return "\n".join(["Spotlight", *lines, *([f"  note: {self.note}"] if self.note else [])])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<li>{escape(name)}: {len(layer.queries):,} queries</li>" for name, layer in self._layers.items()
        )
        return f"<b>Spotlight</b><ul>{rows}</ul>{escape(self.note or '')}"

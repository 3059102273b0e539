"""Tell which rows of a layer belong to which test input: the last token of each prompt, say, whatever the layout.

    rows = InputRows(model, layers, inputs, -1)
    rows.chosen("fc", 0, leading, queries)          # of its first call, (..., d): the last row of each input
    rows.owners("fc")                               # the input that each of them belongs to

Rows may be (batch, time), (time, batch) or flattened, as in training, and are told in the same way: by an experiment,
as soon as somebody asks. Where that cannot tell, inputs go by the first dimension, and rows by those after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import prod
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualform.errors import QueryError, RecordingError, listing
from dualform.kinds import Ragged, kind_of, match_modules
from dualform.kinds.names import named_parameters
from dualform.recorder.layers import LiveLayer
from dualform.recorder.provenance.experiment import Findings, explore
from dualform.recorder.provenance.layout import SHARED, Owners
from dualform.recorder.provenance.signature import tensors
from dualform.recorder.provenance.trial import Arguments, BatchOfOne, Subject, Unproven
from dualform.store import Layer

Shape = tuple[int, ...]
# Hooks see every forward pass through a model, and eval mode is the whole model's: one thread at a time.
ONE_AT_A_TIME = RLock()


class InputRows:
    """The rows of one call of a model, and which of those of each input are asked about; None: all."""

    def __init__(
        self, model: nn.Module, layers: Mapping[str, Layer], inputs: Any, rows: int | slice | None = None
    ) -> None:
        self._model, self._layers, self._inputs, self.rows = model, layers, inputs, rows
        self._leading: dict[str, dict[int, Shape]] = defaultdict(dict)  # of rows, by layer and call

    def asking(self, rows: int | slice | None) -> "InputRows":
        """Return the same with other rows that are asked about; what an experiment found out is found out now."""
        other = InputRows(self._model, self._layers, self._inputs, rows)
        other._found = self._found
        return other

    def chosen(self, layer: str, call: int, leading: Shape, rows: Tensor) -> Tensor:
        """Return the rows (..., d) of a call of a layer that are asked about; all of them, as they are, if none are."""
        self._leading[layer][call] = leading
        if self.rows is None:
            return rows
        index = self._index(self._owners(layer, call, leading), f"layer {layer!r}")
        return rows.reshape(-1, rows.shape[-1])[torch.from_numpy(index).to(rows.device)]

    def chosen_outputs(self, outputs: Tensor, returned: Any) -> Tensor:
        """Return the rows of a model's outputs (..., classes) that are asked about; `returned` has them in it."""
        if self.rows is None or outputs.dim() < 3:
            return outputs
        index = self._index(self._owners_of_outputs(outputs, returned), "the model's output")
        return outputs.flatten(0, -2)[torch.from_numpy(index).to(outputs.device)]

    def leading(self, layer: str) -> Shape:
        """Return the dimensions that all rows of a layer are spread over, where it is called once."""
        return next(iter(self._leading[layer].values()))

    def owners(self, layer: str) -> Owners:
        """Return which input each of the chosen rows of a layer belongs to, or SHARED: of all calls, one by one."""
        of_calls = []
        for call, leading in sorted(self._leading[layer].items()):
            owners = self._owners(layer, call, leading)
            of_calls.append(owners if self.rows is None else owners[self._index(owners, f"layer {layer!r}")])
        return np.concatenate(of_calls)

    def doubt(self, layer: str) -> str | None:
        """Return why it is not known whose the rows of a layer are; None: it is."""
        if isinstance(self._found, Unproven):
            return f"rows go by their shape: {self._found}"
        if self._found is None:
            return None
        findings = {call: self._found.layers.get((layer, call)) for call in self._leading[layer]}
        known = (
            finding is not None
            and not finding.incomplete
            and finding.at(self._leading[layer][call], self._found.batch.size) is not None
            for call, finding in findings.items()
        )
        return None if all(known) else "no output that is laid out by inputs shows it"

    @property
    def note(self) -> str | None:
        """In which layers it is not known whose rows are, and why."""
        if isinstance(self._found, Unproven):
            return f"rows go by their shape: {self._found}"
        doubtful = {layer: doubt for layer in self._leading if (doubt := self.doubt(layer)) is not None}
        if not doubtful:
            return None
        return f"whose rows are is not known in {listing(doubtful)}: {next(iter(doubtful.values()))}"

    @cached_property
    def _found(self) -> Findings | Unproven | None:
        """What an experiment found out; None: there is one input only, and all rows are its own."""
        modules = match_modules(self._model, self._layers)
        parameters = dict(named_parameters(self._model, remove_duplicate=False))
        live = [_live(layer, modules[name], parameters) for name, layer in self._layers.items()]
        subject = Subject(self._model, [layer for layer in live if layer.own_names], self._call)
        try:
            with ONE_AT_A_TIME, trainable(p for module in modules.values() for p in module.parameters(recurse=False)):
                return explore(subject, None)
        except BatchOfOne:
            return None
        except RecordingError:  # which says what to do about it while recording
            return Unproven("in a layer, keys and errors belong to different inputs")
        except Unproven as reason:
            main = next((tensor for tensor in tensors(self._call) if tensor.dim()), torch.empty(0, 0))
            return None if 1 in main.shape[:2] else reason

    @property
    def _call(self) -> Arguments:
        if isinstance(self._inputs, Mapping):
            return (), dict(self._inputs)
        return (self._inputs if isinstance(self._inputs, tuple) else (self._inputs,)), {}

    def _owners(self, layer: str, call: int, leading: Shape) -> Owners:
        if self._found is None:
            return np.zeros(prod(leading), dtype=np.int64)
        if isinstance(self._found, Findings):
            finding = self._found.layers.get((layer, call))
            owners = None if finding is None else finding.at(leading, self._found.batch.size)
            if owners is not None:
                return owners
        if isinstance(leading, Ragged):
            return leading.examples
        return np.arange(prod(leading)) // max(prod(leading[1:]), 1)

    def _owners_of_outputs(self, outputs: Tensor, returned: Any) -> Owners:
        leading = tuple(outputs.shape[:-1])
        if self._found is None:
            return np.zeros(prod(leading), dtype=np.int64)
        if isinstance(self._found, Findings):
            floats = [tensor for tensor in tensors(returned) if tensor.is_floating_point()]
            number = next((number for number, tensor in enumerate(floats) if tensor is outputs), None)
            for axis in self._found.outputs:
                if axis.output == number and axis.axis < len(leading):
                    along = axis.form.owners((leading[axis.axis],), self._found.batch.size)
                    if along is not None:
                        shape = [-1 if dimension == axis.axis else 1 for dimension in range(len(leading))]
                        return np.broadcast_to(along.reshape(shape), leading).reshape(-1)
        return np.arange(prod(leading)) // max(prod(leading[1:]), 1)

    def _index(self, owners: Owners, where: str) -> Owners:
        """Return the numbers of the rows asked about, input by input; rows that are no single input's come last."""
        assert self.rows is not None
        if not len(owners):
            return np.zeros(0, dtype=np.int64)
        order = np.argsort(np.where(owners == SHARED, owners.max() + 1, owners), kind="stable")
        of_inputs = np.split(order, np.flatnonzero(np.diff(owners[order])) + 1)
        asked = self.rows if isinstance(self.rows, slice) else slice(self.rows, self.rows + 1 or None)
        index = [rows if len(rows) == 1 else rows[asked] for rows in of_inputs]
        if isinstance(self.rows, int) and any(len(some) != 1 for some in index):
            fewest = min(len(rows) for rows in of_inputs if len(rows) > 1)
            raise QueryError(f"rows={self.rows}, but an input has {fewest} rows in {where}")
        return np.concatenate(index)


def _live(layer: Layer, module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> LiveLayer:
    """Return a recorded layer as a model has it; its module may have another name for a tied parameter."""
    own = {id(parameter): name for name, parameter in module._parameters.items()}
    names = (own.get(id(parameters[use.parameter.name])) for use in layer.uses)
    return LiveLayer(layer.name, module, kind_of(layer), layer, tuple(name for name in names if name is not None))


@contextmanager
def trainable(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Unfreeze parameters for a while, since nothing can be followed back to a frozen layer."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)

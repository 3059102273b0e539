"""Define a kind of layer: a bilinear map y = A(P, x), linear in the parameter P and in the key x.

    class Kind:
        candidates(name, module, parent)                    which layers a module holds
        add_hooks(module, layer, on_keys)                   its keys on the way forward, its errors on the way back
        rows(call), errors(call, gradient)                  which rows of these are keys and values
        as_map(use, P), apply(use, P, q)                    P as a map (d_out, width), and what it makes of a query
        keys(layer, rows)                                   what keys can be multiplied with: pair, outer, effective

One file each, and that is all it takes: nothing outside of this room asks which kind a layer is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.kinds.hook import WHY_DISABLED, ModuleHook
from dualform.kinds.keys import Keys, Vectors, paired_with
from dualform.store.schema import KeyLayout, Layer, Use

Columns = Mapping[str, tuple[int, int] | None]


class ModuleCall(NamedTuple):  # a named tuple, because dozens of them are made in every step, and quickly
    """A call of a module that holds a layer, as its hook sees it."""

    module: nn.Module
    inputs: Tensor  # its first argument
    precision: torch.dtype  # that it is multiplied in
    followed: bool = True  # whether errors may follow
    further: tuple[Any, ...] = ()  # arguments by position, after the first one
    named: Mapping[str, Any] = MappingProxyType({})  # arguments by name
    context: Any = None  # what else its kind needs to tell keys, and may change before the way back

    def argument(self, position: int, name: str) -> Any:
        """Return an argument after the first, or None."""
        return self.further[position - 1] if position <= len(self.further) else self.named.get(name)


OnErrors = Callable[[Tensor], None]
OnKeys = Callable[[ModuleCall], OnErrors | None]


@dataclass(frozen=True)
class Candidate:
    """A layer in a model, recordable or not: which of a module's parameters multiply which entries of its key."""

    name: str
    kind: "Kind"
    module: nn.Module
    d_in: int
    d_out: int
    columns: Columns  # by the parameters' own names; the first is the one a layer cannot do without
    obstacle: str | None = None  # why it cannot be recorded exactly, as far as its kind can tell
    module_name: str | None = None  # where a module has several layers, and so other names for them
    groups: int = 1  # of outputs, each of which sees entries of the key of its own
    keys: KeyLayout | None = None  # how a key is stored; None: as so many numbers, or as its kind says

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are there: a bias may be missing, a parametrised weight is no parameter."""
        named = self.module._parameters
        return {name: parameter for name in self.columns if (parameter := named.get(name)) is not None}


class Kind(ABC):
    """A sort of layer. What is written out here holds for keys that are vectors, and maps that are matrices."""

    name: ClassVar[str]  # in manifests
    vectors: ClassVar[bool] = True  # keys are stored as the vectors they are: they can be summed up, and sketched
    may_repeat: ClassVar[bool] = True  # a key that depends on nothing trained may come again, and is then stored once
    fallback: ClassVar[bool] = False  # whether it is asked only of modules in which no other kind knows a layer

    # Which layers there are

    @abstractmethod
    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        """Yield the layers of this kind that a module holds.

        Args:
            name: The module's name in the model.
            module: The module.
            parent: The module that holds it, which may use its parameters without calling it.
        """

    def module_of(self, layer: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
        """Return the module that a layer belongs to, among those of a model; raise if it cannot be hooked there."""
        return modules.get(layer)

    def key_layout(self, d_in: int) -> KeyLayout:
        """Return how a key is stored: as `d_in` numbers, unless a kind knows better."""
        return KeyLayout(d_in)

    def key_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return what keys are stored as, where numbers are stored as `dtype`."""
        return dtype

    def check(self, layer: Layer) -> None:
        """Raise a ValueError unless a described layer is one of this kind."""
        columns = [use.columns for use in layer.uses if use.columns is not None]
        ends = [0, *(end for _, end in columns)]
        whole = [start for start, _ in columns] == ends[:-1] and ends[-1] == layer.d_in and sorted({*ends}) == ends
        fitting = all(use.parameter.shape == self.shape(layer, use) for use in layer.uses)
        first = layer.uses[:1] == layer.attended[:1] and layer.trained[: len(layer.attended)] == layer.attended
        if not (whole and fitting and first and self.fits(layer)):
            raise ValueError(f"layer {layer.name!r} is not one that can be recorded")

    def fits(self, layer: Layer) -> bool:
        """Return whether a described layer has keys and groups that this kind can have."""
        return layer.keys == self.key_layout(layer.d_in) and all(use.groups == 1 for use in layer.uses)

    # What a call of the module says

    def add_hooks(self, module: nn.Module, layer: Layer, on_keys: OnKeys, *, lasting: bool) -> RemovableHandle:
        """Call `on_keys` in every forward pass, and what it returns in the backward pass that follows.

        Key and error are paired by the closure, so in-place activations, repeated calls and checkpointing all pair
        up.

        Args:
            module: The module to hook.
            layer: The layer, as a run describes it.
            on_keys: Takes the call, and returns what takes its errors, if anything does.
            lasting: Whether the hook stays while the user works, who may compile the model.
        """

        def on_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            # In torch.vmap and torch.func, tensors are not themselves, and no backward pass fills any gradient.
            if not output.numel() or torch._C._functorch.is_functorch_wrapped_tensor(output):
                return
            given = args or tuple(kwargs.values())
            context = self.context(module, given[0])
            on_errors = on_keys(
                ModuleCall(module, given[0], output.dtype, output.requires_grad, args[1:], kwargs, context)
            )
            if on_errors is not None and output.requires_grad:
                output.register_hook(on_errors)

        # a lasting one is run as plain Python, between two graphs; to import the compiler for others would take seconds
        hook = torch.compiler.disable(on_forward, **WHY_DISABLED) if lasting else on_forward
        return module.register_forward_hook(ModuleHook(hook), with_kwargs=True)

    def context(self, module: nn.Module, inputs: Tensor) -> Any:
        """Return what else tells the keys of a call, as it is when the call is made; nothing, mostly."""
        return None

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        """Return the dimensions that the slots of a call are spread over."""
        return tuple(call.inputs.shape[:-1])

    def rows(self, call: ModuleCall) -> Tensor:
        """Return the keys of a call as they are stored: (slots, key width); or the pixels of its maps.

        Autocast computes the product, and so the gradient, in the output's precision.
        """
        inputs = call.inputs.detach()
        rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, inputs.shape[-1])
        return rows if rows.dtype == call.precision else rows.to(call.precision)

    def extents(self, call: ModuleCall) -> tuple[int, ...]:
        """Return the extents of the maps of a call, where maps are stored."""
        return ()

    def told_apart_by(self, call: ModuleCall) -> Tensor:
        """Return something of each slot of a call that is the same where its key is: (slots, n)."""
        return self.rows(call)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        """Return the gradient of a call's output with a row for each slot: (slots, d_out)."""
        return gradient if gradient.dim() == 2 else gradient.reshape(-1, gradient.shape[-1])

    def errors(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        """Return the values of a call: (slots, d_out)."""
        return self.by_slot(call, gradient.detach())

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        """Return a test input as queries: (..., d_in)."""
        return call.inputs

    # The map

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        """Return the shape of a parameter."""
        return (layer.d_out,) if use.columns is None else (layer.d_out, use.width)

    def transposed(self, use: Use) -> bool:
        """Return whether the map is the parameter transposed: two layers may use a tied weight either way.

        What `as_map` makes of any matrix tells, so that a kind need not say it twice.
        """
        return len(use.parameter.shape) == 2 and self.as_map(use, torch.empty(2, 3)).shape == (3, 2)

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        """View a parameter, or a stack of them, as the map (d_out, width) it is."""
        return parameter[..., None] if use.columns is None else parameter

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        """View a map as its parameter is shaped."""
        return matrix[..., 0] if use.columns is None else matrix

    def apply(self, use: Use, matrix: Tensor, queries: Tensor) -> Tensor:
        """Apply a map to queries (queries, d_in), in the map's precision: (queries, d_out)."""
        paired = paired_with(use, queries).to(matrix.dtype)
        if use.groups == 1:
            return paired @ matrix.mT
        by_group = paired.unflatten(1, (use.groups, -1)), matrix.unflatten(0, (use.groups, -1))
        return torch.einsum("ngw,gow->ngo", *by_group).flatten(1)

    def keys(self, layer: Layer, rows: Tensor) -> Keys:
        """Return rows, one for each slot, as keys: as they are stored, (slots, key width), or unfolded."""
        return Vectors(rows)

    def keys_of_call(self, layer: Layer, call: ModuleCall) -> Keys:
        """Return the keys of a whole call."""
        return self.keys(layer, self.rows(call))

    def unfold(self, layer: Layer, rows: Tensor, extents: tuple[int, ...]) -> Tensor:
        """Return stored rows of one call with a row for each slot, which they mostly have."""
        return rows

    def pair_into(self, vectors: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        """Write the attention weights between vectors (n, d_in) and stored rows, all entries, to `out`: (n, slots)."""
        return torch.mm(vectors, rows.mT, out=out)

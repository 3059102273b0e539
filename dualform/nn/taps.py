"""Let others see what goes through the linear maps of a module, one tap a map.

    class Mine(Tapped):
        def maps(self): ...                         # {"l0": LinearMap(d_in, d_out, {"weight": (0, d_in)})}

    handle = module.tap("l0", lambda keys: print)   # the keys of a map; its errors are printed

Taps are for gates and other maps whose keys and errors are no tensors that a hook could see.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from dualform.errors import UnknownName

Rows = Tensor | PackedSequence
Receive = Callable[[Tensor], None]
Tap = Callable[[Any], Receive | None]  # of Rows
RowTap = Callable[[Tensor], Receive | None]  # inside: rows are (slots, d)
Layout = Callable[[Tensor], Tensor]
Function = TypeVar("Function", bound=Callable[..., Any])


class LinearMap(NamedTuple):
    """A linear map in a module: the parameters it uses, and which entries of its key each of them multiplies."""

    d_in: int
    d_out: int
    columns: Mapping[str, tuple[int, int] | None]  # None: a bias, whose key is always 1


class Tapped(nn.Module):
    """A module that shows its linear maps."""

    _taps: dict[str, "OrderedDict[int, Tap]"]  # by map; is made by the first tap, so that a class can just be swapped

    def maps(self) -> dict[str, LinearMap]:
        """Return the linear maps by name: what is added to the module's own name makes that of the layer."""
        raise NotImplementedError

    def tap(self, name: str, on_keys: Tap) -> RemovableHandle:
        """Call `on_keys` with the keys of a linear map in every forward pass, until `handle.remove()`.

        Args:
            name: The map's name, one of `maps()`.
            on_keys: Takes the keys in the layout of the module's input, (..., d_in); of packed sequences, a
                PackedSequence of them. If it returns a function, the backward pass calls that with the errors,
                (..., d_out), in the same layout; of packed sequences, with a row for each of their rows.
        """
        if name not in self.maps():
            raise UnknownName(f"map of {type(self).__name__}", name, self.maps())
        own = self.__dict__.setdefault("_taps", {}).setdefault(name, OrderedDict())
        handle = RemovableHandle(own)
        own[handle.id] = on_keys
        return handle

    def row_tap(self, name: str, keys: Callable[[Tensor], Rows], errors: Layout) -> RowTap | None:
        """Return all taps of a map as one, for rows (slots, d), each shown in the layout of the module; None: no tap.

        Args:
            name: The map's name.
            keys: Brings rows of keys into that layout.
            errors: Brings rows of errors into that layout.
        """
        taps = [*self.__dict__.get("_taps", {}).get(name, {}).values()]

        def on_keys(rows: Tensor) -> Receive:
            receivers = [receive for tap in taps if (receive := tap(keys(rows))) is not None]

            def receive_all(rows: Tensor) -> None:
                for receive in receivers:
                    receive(errors(rows))

            return receive_all

        return on_keys if taps else None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: taps belong to whoever set them, on this module only."""
        inherited: Any = super()
        return {name: value for name, value in inherited.__getstate__().items() if name != "_taps"}


def uncompiled(function: Function) -> Function:
    """Return a function that torch.compile runs as plain Python: it cannot follow backward passes written by hand."""
    # to import the compiler takes seconds
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function

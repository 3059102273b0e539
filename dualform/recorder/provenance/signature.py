"""Take the arguments of a call apart: what a module was called with, as nested lists, tuples and mappings of tensors.

    describe(batch)                     # hashable: equal for calls that differ in the values of tensors only
    describe(batch, sizes=False)        # and in their sizes
    replace(batch, torch.clone)         # the same, made of other tensors
    list(tensors(output))               # in order

Only what can be made again is replaced. An object of another class may hold tensors, or remember that it was passed to
a module (a cache of keys does); that raises `Opaque`.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

_PLAIN = (
    int, float, complex, str, bytes, Enum, type, slice, torch.dtype, torch.device, torch.Generator,
    FunctionType, BuiltinFunctionType, MethodType,
)  # fmt: skip


class Opaque(Exception):
    """An argument of a class that cannot be made again."""


def describe(value: Any, sizes: bool = True) -> Hashable:
    """Return what there is to say of arguments but for the values of tensors."""
    if isinstance(value, Tensor):
        return (value.shape if sizes else value.dim()), value.dtype
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return (type(value), *[describe(item, sizes) for item in value])
    if isinstance(value, Mapping):
        return (type(value), *[(name, describe(item, sizes)) for name, item in value.items()])
    if sizes and type(value) is int:
        return value  # how often something is repeated, perhaps
    return (type(value),)


def replace(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same arguments with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        items = [replace(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        named = {name: replace(item, change) for name, item in value.items()}
        return type(value)(**named) if is_dataclass(value) else type(value)(named)  # type: ignore[call-arg]
    raise Opaque(type(value).__name__)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments, or in what a module returned; those in objects of other classes are left out."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))

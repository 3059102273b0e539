"""Record convolutions: a slot is a position of an example, its key the patch that is seen there.

Input maps are stored, once, and unfolded when they are read: a patch of 3 x 3 pixels alone would take nine times the
bytes. The entries of a patch are in the order of the weight's: channel by channel, and in each of them tap by tap.

A transposed convolution is the other way round. Its key is a pixel of the input, and what it makes of that is a patch
of the output, where patches overlap and add up. So its value is the patch of the error map.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dualform.kinds.base import Candidate, Kind, ModuleCall
from dualform.kinds.keys import Keys, Ones, Vectors
from dualform.store.geometry import NO_PIXEL, Geometry, Sizes
from dualform.store.schema import KeyLayout, Layer, Use

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)
_TELLING = 8  # numbers that patches are told apart by

Convolved = nn.Conv1d | nn.Conv2d | nn.Conv3d


def unfolded(pixels: Tensor, taps: Tensor) -> Tensor:
    """Return patches of pixels (pixels, channels), given the number of each (slots, taps): (slots, channels * taps)."""
    patches = pixels.index_select(0, taps.reshape(-1)).view(*taps.shape, -1)  # (slots, taps, channels)
    return patches.mT.reshape(len(taps), -1)


def unfold_maps(pixels: Tensor, extents: Sizes, geometry: Geometry) -> Tensor:
    """Return all patches of some maps, whose pixels (maps * pixels of each, channels) are one after the other."""
    table, size = geometry.taps(extents), prod(extents)
    starts = np.arange(len(pixels) // size)[:, None, None] * size
    taps: NDArray[Any] = np.where(table == NO_PIXEL, len(pixels), table + starts).reshape(-1, table.shape[1])
    with_none = torch.cat([pixels, pixels.new_zeros(1, pixels.shape[1])])
    return unfolded(with_none, torch.from_numpy(taps).to(pixels.device))


def geometry_of(module: Convolved) -> Geometry:
    """Return how a convolution moves over its input."""
    padding = module.padding
    if padding == "same":  # as torch has it: what is odd goes behind
        whole = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        before, after = tuple(n // 2 for n in whole), tuple(n - n // 2 for n in whole)
    else:
        before = after = (0,) * len(module.kernel_size) if padding == "valid" else cast(Sizes, tuple(padding))
    mode, stride = module.padding_mode, tuple(module.stride)
    return Geometry(tuple(module.kernel_size), stride, tuple(module.dilation), before, after, mode)


def pixels_of(maps: Tensor, dimensions: int) -> Tensor:
    """Return maps (..., channels, *extents) as rows of pixels: (pixels, channels)."""
    return maps.movedim(-1 - dimensions, -1).reshape(-1, maps.shape[-1 - dimensions])


class _ConvolutionKind(Kind):
    """What all convolutions have in common: their input is a batch of maps, or a single one."""

    vectors = False  # a key is not stored by itself
    may_repeat = False

    def _obstacle(self, module: Convolved, base: type[nn.Module]) -> str | None:
        overrides = type(module).forward is not base.forward
        return f"{type(module).__name__} overrides {base.__name__}'s forward" if overrides else None

    def fits(self, layer: Layer) -> bool:
        groups = {use.groups for use in layer.uses if use.columns is not None}
        return len(groups) == 1 and not layer.d_out % groups.pop()


class Convolution(_ConvolutionKind):
    """y[p] = W patch(x, p) + b"""

    name = "Convolution"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        base = next((base for base in _CONVOLUTIONS if isinstance(module, base)), None)
        if base is not None:
            convolution = cast(Convolved, module)
            channels, d_in = convolution.in_channels, convolution.in_channels * prod(convolution.kernel_size)
            columns = {"weight": (0, d_in), "bias": None}
            yield Candidate(
                name, self, module, d_in, convolution.out_channels, columns, self._obstacle(convolution, base),
                groups=convolution.groups, keys=KeyLayout(channels, geometry=geometry_of(convolution)),
            )  # fmt: skip

    def fits(self, layer: Layer) -> bool:
        geometry, width = layer.keys.geometry, layer.keys.width
        if geometry is None or layer.keys.index or layer.d_in != width * prod(geometry.kernel):
            return False
        return super().fits(layer) and not width % layer.uses[0].groups

    def check(self, layer: Layer) -> None:
        super().check(layer)
        geometry, shape = layer.keys.geometry, layer.uses[0].parameter.shape
        if geometry is None or shape[2:] != geometry.kernel:
            raise ValueError(f"layer {layer.name!r} is not one that can be recorded")

    def _dimensions(self, call: ModuleCall) -> int:
        return len(cast(Convolved, call.module).kernel_size)

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        dimensions, geometry = self._dimensions(call), geometry_of(cast(Convolved, call.module))
        return *call.inputs.shape[: -1 - dimensions], *geometry.positions(self.extents(call))

    def rows(self, call: ModuleCall) -> Tensor:
        pixels = pixels_of(call.inputs.detach(), self._dimensions(call))
        return pixels if pixels.dtype == call.precision else pixels.to(call.precision)

    def extents(self, call: ModuleCall) -> tuple[int, ...]:
        return tuple(call.inputs.shape[-self._dimensions(call) :])

    def told_apart_by(self, call: ModuleCall) -> Tensor:
        module, dimensions = cast(Convolved, call.module), self._dimensions(call)
        generator = torch.Generator().manual_seed(module.in_channels)
        shape = _TELLING, module.in_channels, *module.kernel_size
        weight = torch.randn(shape, generator=generator).to(call.inputs.device, call.precision)
        return pixels_of(_Maps(call).convolved(weight, groups=1), dimensions)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        return pixels_of(gradient, self._dimensions(call))

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        patches = unfold_maps(self.rows(call), self.extents(call), geometry_of(cast(Convolved, call.module)))
        return patches.view(*self.leading(call), -1)

    def keys_of_call(self, layer: Layer, call: ModuleCall) -> Keys:
        return _Maps(call)

    def unfold(self, layer: Layer, rows: Tensor, extents: tuple[int, ...]) -> Tensor:
        assert layer.keys.geometry is not None
        return unfold_maps(rows, extents, layer.keys.geometry)

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        if use.columns is None or layer.keys.geometry is None:
            return super().shape(layer, use)
        return layer.d_out, layer.keys.width // use.groups, *layer.keys.geometry.kernel

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return parameter[..., None] if use.columns is None else parameter.flatten(1 - len(use.parameter.shape))

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        return matrix[..., 0] if use.columns is None else matrix.unflatten(-1, use.parameter.shape[1:])


class _Maps(Keys):
    """The keys of a whole call: to multiply all patches by a few vectors is a convolution, and nothing is unfolded."""

    def __init__(self, call: ModuleCall) -> None:
        module = cast(Convolved, call.module)
        self._module, self._geometry = module, geometry_of(module)
        maps = call.inputs.detach().to(call.precision)
        self._maps = maps if maps.dim() == self._geometry.dimensions + 2 else maps[None]

    def __len__(self) -> int:
        return len(self._maps) * prod(self._geometry.positions(tuple(self._maps.shape[2:])))

    def of(self, use: Use) -> Keys:
        return Ones(len(self)) if use.columns is None else self

    def convolved(self, weight: Tensor, groups: int) -> Tensor:
        """Return the maps, convolved as their module does it, with another weight."""
        geometry, maps = self._geometry, self._maps
        pads = list(zip(geometry.before, geometry.after, strict=True))
        if any(map(any, pads)):
            backwards = [size for pad in reversed(pads) for size in pad]
            maps = F.pad(maps, backwards, mode="constant" if geometry.mode == "zeros" else geometry.mode)
        convolve: Any = _CONVOLVE[geometry.dimensions - 1]
        convolved: Tensor = convolve(maps, weight, stride=geometry.stride, dilation=geometry.dilation, groups=groups)
        return convolved

    def seen(self, values: Tensor, vectors: Tensor) -> Tensor:
        groups, n = self._module.groups, vectors.shape[1]
        weight = vectors.mT.reshape(n, -1, *self._geometry.kernel).to(self._maps.dtype)
        signals = self.convolved(weight.repeat(groups, *(1 for _ in weight.shape[1:])), groups)
        by_group = pixels_of(signals, self._geometry.dimensions).unflatten(1, (groups, n))  # (slots, groups, n)
        grouped = values.unflatten(1, (groups, -1)).to(vectors.dtype)
        return torch.einsum("sgo,sgn->gon", grouped, by_group.to(vectors.dtype)).flatten(0, 1)

    def _unfolded(self) -> Keys:
        extents = tuple(self._maps.shape[2:])
        return Vectors(unfold_maps(pixels_of(self._maps, len(extents)), extents, self._geometry))

    def _entries(self, start: int, stop: int) -> Keys:
        return self

    def pair(self, queries: Tensor) -> Tensor:
        return self._unfolded().pair(queries)

    def outer(self, values: Tensor) -> Tensor:
        return self._unfolded().outer(values)

    def outers(self, values: Tensor) -> Tensor:
        return self._unfolded().outers(values)

    def outer_squares(self, values: Tensor) -> Tensor:
        return self._unfolded().outer_squares(values)

    def seen_transposed(self, values: Tensor, vectors: Tensor) -> Tensor:
        return self._unfolded().seen_transposed(values, vectors)

    def effective(self, coefficient: Tensor, query: Tensor) -> Tensor:
        return self._unfolded().effective(coefficient, query)

    def add_to(self, sums: Tensor, codes: NDArray[np.int64], factors: Tensor | None) -> None:
        self._unfolded().add_to(sums, codes, factors)


class TransposedConvolution(_ConvolutionKind):
    """patch(y, p) += W^T x[p], summed over where patches overlap.

    The bias is added to every pixel of the output, which no slot stands for: it is accounted for.
    """

    name = "TransposedConvolution"

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        base = next((base for base in _TRANSPOSED if isinstance(module, base)), None)
        if base is not None:
            convolution = cast(Any, module)
            d_out = convolution.out_channels * prod(convolution.kernel_size)
            yield Candidate(
                name, self, module, convolution.in_channels, d_out, {"weight": (0, convolution.in_channels)},
                self._obstacle(convolution, base), groups=convolution.groups,
            )  # fmt: skip

    def fits(self, layer: Layer) -> bool:
        return super().fits(layer) and layer.keys == KeyLayout(layer.d_in) and not layer.d_in % layer.uses[0].groups

    def leading(self, call: ModuleCall) -> tuple[int, ...]:
        shape, dimensions = call.inputs.shape, len(cast(Any, call.module).kernel_size)
        return *shape[: -1 - dimensions], *shape[-dimensions:]

    def rows(self, call: ModuleCall) -> Tensor:
        return pixels_of(call.inputs.detach(), len(cast(Any, call.module).kernel_size)).to(call.precision)

    def by_slot(self, call: ModuleCall, gradient: Tensor) -> Tensor:
        module, dimensions = cast(Any, call.module), len(cast(Any, call.module).kernel_size)
        out, inside = tuple(gradient.shape[-dimensions:]), tuple(call.inputs.shape[-dimensions:])
        sizes = zip(inside, out, module.kernel_size, module.stride, module.dilation, module.padding, strict=True)
        # so far behind the border that there are as many positions as pixels of the input
        after = tuple((n - 1) * s + d * (k - 1) + 1 - o - p for n, o, k, s, d, p in sizes)
        geometry = Geometry(module.kernel_size, module.stride, module.dilation, tuple(module.padding), after)
        return unfold_maps(pixels_of(gradient, dimensions), out, geometry)

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        return self.rows(call).view(*self.leading(call), -1)

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        return use.parameter.shape if prod(use.parameter.shape) == layer.d_out * use.width else ()

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        by_group: Tensor = parameter.flatten(1 - len(use.parameter.shape)).unflatten(-2, (use.groups, -1))
        return by_group.mT.flatten(-3, -2)  # (..., groups, inputs of each, outputs) -> (..., d_out, width)

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        by_group: Tensor = matrix.unflatten(-2, (use.groups, -1)).mT
        parameter: Tensor = by_group.flatten(-3, -2).unflatten(-1, use.parameter.shape[1:])
        return parameter

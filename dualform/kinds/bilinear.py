"""Record nn.Bilinear: its key is the product of its two inputs, entry by entry."""

from collections.abc import Iterator

from torch import Tensor, nn

from dualform.kinds.base import Candidate, Kind, ModuleCall
from dualform.store.schema import Layer, Use


class Bilinear(Kind):
    """y[k] = x^T W[k] z + b[k], which is linear in x z^T"""

    name = "Bilinear"
    may_repeat = False  # the second input may depend on what is trained

    def candidates(self, name: str, module: nn.Module, parent: nn.Module) -> Iterator[Candidate]:
        if isinstance(module, nn.Bilinear):
            d_in = module.in1_features * module.in2_features
            columns = {"weight": (0, d_in), "bias": None}
            overrides = type(module).forward is not nn.Bilinear.forward
            obstacle = f"{type(module).__name__} overrides nn.Bilinear's forward" if overrides else None
            yield Candidate(name, self, module, d_in, module.out_features, columns, obstacle)

    def rows(self, call: ModuleCall) -> Tensor:
        first, second = call.inputs.detach(), self._second(call).detach()
        products = first[..., :, None] * second[..., None, :]
        return products.reshape(-1, first.shape[-1] * second.shape[-1]).to(call.precision)

    def _second(self, call: ModuleCall) -> Tensor:
        second: Tensor = call.argument(1, "input2")
        return second

    def queries(self, layer: Layer, call: ModuleCall) -> Tensor:
        return self.rows(call).view(*self.leading(call), -1)

    def shape(self, layer: Layer, use: Use) -> tuple[int, ...]:
        fits = len(use.parameter.shape) == 3 and use.parameter.shape[1] * use.parameter.shape[2] == use.width
        return super().shape(layer, use) if use.columns is None or not fits else (layer.d_out, *use.parameter.shape[1:])

    def as_map(self, use: Use, parameter: Tensor) -> Tensor:
        return parameter[..., None] if use.columns is None else parameter.flatten(-2)

    def from_map(self, use: Use, matrix: Tensor) -> Tensor:
        return matrix[..., 0] if use.columns is None else matrix.unflatten(-1, use.parameter.shape[1:])

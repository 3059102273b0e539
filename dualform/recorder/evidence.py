"""Gather what is known of a step before it is audited: ledger lines, gradients seen by a probe, captured passes.

    view = view_gradients(layer)                        # just before the optimiser reads the gradients
    view = view_gradients(layer, view)                  # the same, unless they have changed since

Gradients are looked at just before the optimiser reads them, so that they come from memory once for both, and because
some change them while they step: SGD with Nesterov's momentum and foreach does. A closure is looked at when it has made
them. Where another hook comes after the recorder's own and changes them, they are looked at once more after the step.
Fused optimisers may unscale them without counting up their versions, and are looked at afterwards only. A hook that
comes after the recorder's own and changes them through `.data`, which nothing counts, shows in the certificate only.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dualform.errors import RecordingError
from dualform.recorder.captures import Capture, Pass, Told, UnstoredPass
from dualform.recorder.layers import RecordedLayer
from dualform.recorder.plan import RecordedOptimizer
from dualform.store.chapter import Accounts, Witness

# What rounding may leave over, elementwise: SLACK eps |E|^T |X| |r|. The bound uses absolute values,
# not the gradient's size, since a gradient may cancel to nothing (a bias before a BatchNorm does).
SLACK = 32.0
# And, where many rows are summed up: each addition rounds the sum so far by up to eps / 2 of its size. The errors of n
# of them are independent, so they add up to sqrt(n) / 2 times the largest sum so far: four times that is allowed.
_OF_SUMS_SO_FAR = 2.0
# And, of the gradient's own size, where it was rounded to half precision as a whole.
_HALF_ROUNDING = {dtype: 4.0 * torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16)}
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}

Lines = Mapping[str, Sequence[float]]  # of the ledger, by parameter


class GradientView(NamedTuple):
    """What the probe saw of a layer's gradients, in memory of its own."""

    products: Sequence[Tensor]  # (grad r)^T of each trained use, flat; empty where another layer looks at the gradient
    stepped: Sequence[int]  # which trained uses have a gradient at all
    eps: float  # of the gradients' precision, at least float32's


class ViewedGradients(NamedTuple):
    """A view, and which gradients it is of."""

    view: GradientView
    gradients: Sequence[Tensor | None]  # of each trained use
    versions: Sequence[int]  # of those that are there


class LayerEvidence(NamedTuple):
    """A layer in one step: its gradients seen through the probe, and its passes by their number."""

    layer: RecordedLayer
    view: GradientView
    passes: Mapping[int, Pass]

    @property
    def captures(self) -> list[Capture | Told]:
        """Of all passes."""
        return [capture for of_pass in self.passes.values() for capture in of_pass.captures]

    @property
    def counted(self) -> list[bool]:
        """Which passes were accumulated; all of them, if none was: gradients were set by hand then."""
        accumulated = [of_pass.accumulated for of_pass in self.passes.values()]
        return accumulated if any(accumulated) else [True] * len(accumulated)

    @property
    def product(self) -> Tensor:
        """The sum over passes that count of what went through the layer, seen through the probe: flat."""
        counted = zip(self.passes.values(), self.counted, strict=True)
        first, *others = (capture for of_pass, counts in counted if counts for capture in of_pass.captures)
        return sum((capture.product for capture in others), start=first.product)

    @property
    def rows(self) -> int:
        """How many rows went through the layer."""
        return sum(capture.slots for capture in self.captures)

    @property
    def rounding(self) -> float:
        """What rounding may leave over, of the gradient's own size."""
        return max(SLACK, rounding_of_sum(self.rows)) * self.view.eps + self.half_rounding

    @property
    def half_rounding(self) -> float:
        """What rounding the whole gradient to half precision, as autocast does, may leave over."""
        return max([_HALF_ROUNDING.get(capture.precision, 0.0) for capture in self.captures], default=0.0)


Uses = Sequence[tuple[LayerEvidence, int]]  # of one parameter: layers, each with the number of its trained use


class FamilyEvidence(NamedTuple):
    """Layers that share parameters, in one step: nearly always a single layer.

    The gradient of a parameter is the sum of what went through all layers that use it. The first of them looks at it.
    """

    layers: Sequence[LayerEvidence]

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Of each parameter: rows, and numbers in each."""
        if len(self.layers) == 1:
            return self.layers[0].layer.probe.layout
        return tuple(shape for evidence in self.layers for shape in evidence.layer.probe.layout)

    @property
    def is_complete(self) -> bool:
        """Whether there was a pass, and all parameters have gradients."""
        uses = all(len(evidence.view.stepped) == len(evidence.layer.probe.slices) for evidence in self.layers)
        return uses and any(evidence.passes for evidence in self.layers)

    @property
    def passes(self) -> int:
        """How many passes there may have been."""
        return sum(len(evidence.passes) for evidence in self.layers)

    @property
    def uses(self) -> list[Uses]:
        """The uses of each parameter that has a gradient; the layer that looks at it comes first."""
        by_parameter: dict[str, list[tuple[LayerEvidence, int]]] = {}
        for evidence in self.layers:
            for use in evidence.view.stepped:
                name = evidence.layer.description.trained[use].parameter.name
                by_parameter.setdefault(name, []).append((evidence, use))
        return [*by_parameter.values()]

    @property
    def counted(self) -> list[tuple[bool, ...]]:
        """Which passes of each layer were accumulated; all of them, if none was in any layer."""
        if len(self.layers) == 1:
            return [(*self.layers[0].counted,)]
        accumulated = {n for evidence in self.layers for n, of_pass in evidence.passes.items() if of_pass.accumulated}
        return [tuple(n in accumulated or not accumulated for n in evidence.passes) for evidence in self.layers]

    @property
    def product(self) -> Tensor:
        """The sum over passes that count, and over uses, of what went through the layers: parameter by parameter."""
        if len(self.layers) == 1:
            return self.layers[0].product
        through = {}
        for evidence, counted in zip(self.layers, self.counted, strict=True):
            passes = [
                of_pass.product for of_pass, counts in zip(evidence.passes.values(), counted, strict=True) if counts
            ]
            through[evidence.layer.name] = sum(passes[1:], start=passes[0]) if passes else None
        products = []
        for (evidence, use), *others in self.uses:
            product = torch.zeros_like(evidence.view.products[use])
            for user, i in ((evidence, use), *others):
                seen = through[user.layer.name]
                product = product if seen is None else product + seen[user.layer.probe.slices[i]]
            products.append(product)
        return torch.cat(products)

    @property
    def rounding(self) -> float:
        """What rounding may leave over, of the gradients' own size."""
        if len(self.layers) == 1:
            return self.layers[0].rounding
        return rounding_of_uses([(evidence, 0) for evidence in self.layers])


def families(layers: Sequence[LayerEvidence]) -> list[FamilyEvidence]:
    """Return layers by what they share."""
    by_family: dict[tuple[str, ...], list[LayerEvidence]] = {}
    for evidence in layers:
        by_family.setdefault(evidence.layer.family, []).append(evidence)
    return [FamilyEvidence(members) for members in by_family.values()]


class StepEvidence(NamedTuple):
    """A step that was taken."""

    lines: Lines  # of the optimiser's parameters: whether each was stepped, then the optimiser's columns
    layers: Sequence[LayerEvidence]  # those that have gradients
    accounts: Accounts  # of what no layer uses
    unstored: Mapping[str, Mapping[int, UnstoredPass]] = MappingProxyType({})  # passes of layers that nobody looks at
    witness: Witness | None = None  # of a recipe's step


def rounding_of_sum(rows: int) -> float:
    """Return what rounding may add to a sum over so many rows, in units of eps times the largest sum so far."""
    return _OF_SUMS_SO_FAR * float(rows**0.5)


def rounding_of_uses(uses: Uses) -> float:
    """Return what rounding may leave over of the gradient of a parameter with these uses, of its own size."""
    rows, eps = sum(evidence.rows for evidence, _ in uses), max(evidence.view.eps for evidence, _ in uses)
    return max(SLACK, rounding_of_sum(rows)) * eps + half_rounding_of_uses(uses)


def half_rounding_of_uses(uses: Uses) -> float:
    """Return what rounding to half precision may leave over of it."""
    return max(evidence.half_rounding for evidence, _ in uses)


def trained_parameters(layer: RecordedLayer) -> list[nn.Parameter]:
    """Return the parameters of a layer's trained uses, as they are now."""
    own = layer.module._parameters  # past nn.Module's search by name, which is slow for what every step asks
    parameters = [parameter for name in layer.own_names if (parameter := own.get(name)) is not None]
    if len(parameters) < len(layer.own_names):
        raise RecordingError(f"a parameter of layer {layer.name!r} was removed while recording")
    return parameters


def read_lines(stepped: RecordedOptimizer) -> dict[str, tuple[float, ...]]:
    """Read the hyper-parameters of each recorded parameter off its optimiser; none if there is no rule to read them."""
    groups = {id(p): group for group in stepped.optimizer.param_groups for p in group["params"]}
    read, state = stepped.rule and stepped.rule.read, stepped.optimizer.state
    lines: dict[str, tuple[float, ...]] = {}
    for layer in stepped.layers:
        for use, parameter in zip(layer.description.trained, trained_parameters(layer), strict=True):
            name, group = use.parameter.name, groups.get(id(parameter))
            if group is None:
                raise RecordingError(f"parameter {name!r} was removed from its optimiser while recording")
            # .get: the state is a defaultdict, and looking must not make an entry
            lines[name] = read(group, state.get(parameter, {})) if read else ()
    return lines


def view_gradients(layer: RecordedLayer, before: ViewedGradients | None = None) -> ViewedGradients:
    """Look at the gradients of a layer through its probe, unless they still are what was seen before."""
    parameters = trained_parameters(layer)
    gradients = [parameter.grad for parameter in parameters]
    versions = [gradient._version for gradient in gradients if gradient is not None]
    if before is not None and versions == before.versions and all(map(is_, gradients, before.gradients)):
        return before
    stepped = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not stepped:
        return ViewedGradients(GradientView([], stepped, 0.0), gradients, versions)
    with torch.no_grad():  # those of nn.Embedding(sparse=True) are sparse
        known = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
        products = layer.probe.of_gradients(known)
    view = GradientView(products, stepped, _EPS.get(known[0].dtype, _EPS[torch.float32]))
    return ViewedGradients(view, gradients, versions)


_FIRST_STEPS = 16  # are audited at once
_MAX_STEPS = 16
_MAX_SECONDS = 5.0
_MAX_BYTES = 32 << 20  # of rows


class PendingSteps:
    """Steps that wait to be audited and handed to the writer.

    What is wrong with a training loop is mostly so from its first step on, and is reported in that step. Later steps
    wait for one another: between the products of a training every little bit of work is several times as slow as in a
    loop of its own. None waits long, though, and none where its rows would have to be kept for the audit alone.

    Several processes audit the same steps, and agree each time on how many wait for the next one.
    """

    def __init__(self, wait: bool, agreed: bool = False) -> None:
        self._wait = wait
        self._steps: list[StepEvidence] = []
        self._taken = 0  # steps
        self._nbytes = 0
        self._since = monotonic()
        self._agreed = 1 if agreed else None  # how many wait; None: that is found out as they come
        self.wish = 1  # how many would wait next, if it were up to this process

    def add(self, step: StepEvidence) -> bool:
        """Add a step and return whether it is time to take all of them."""
        self._steps.append(step)
        passes = (of_pass for layer in step.layers for of_pass in layer.passes.values())
        captures = (capture for of_pass in passes for capture in of_pass.captures)
        self._nbytes += sum(capture.nbytes for capture in captures)
        waiting = len(self._steps)
        if self._agreed is not None:
            return waiting >= self._agreed
        first = not self._wait or self._taken + waiting <= _FIRST_STEPS
        full = waiting >= _MAX_STEPS or self._nbytes >= _MAX_BYTES
        return first or full or monotonic() - self._since >= _MAX_SECONDS

    def take(self) -> list[StepEvidence]:
        steps, self._steps = self._steps, []
        self._taken += len(steps)
        if self._agreed is not None and steps:
            alike = min(_MAX_BYTES * len(steps) // max(self._nbytes, 1), _MAX_STEPS)
            soon = int(_MAX_SECONDS * len(steps) / max(monotonic() - self._since, 1e-3))
            self.wish = max(1, min(alike, soon)) if self._wait and self._taken >= _FIRST_STEPS else 1
        self._nbytes, self._since = 0, monotonic()
        return steps

    def agree(self, steps: int) -> None:
        """Let so many steps wait for one another from now on."""
        self._agreed = steps

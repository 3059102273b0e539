"""What the optimisers are about to do, read off them just before they do it."""

from collections.abc import Sequence
from inspect import unwrap

from torch import Tensor
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule, known, known_as, registered_base, registered_name
from dualform.errors import RecordingError
from dualform.store import Optimizer as Description


def describe(optimizer: Optimizer, values: bool) -> Description:
    """The optimiser as the manifest names it. Without values any optimiser will do."""
    if not values:
        return Description(type(optimizer).__name__, ())
    kind = _kind(optimizer)
    return Description(kind, RULES[kind].columns)


def rule_for(optimizer: Optimizer) -> Rule:
    """The algebra of an optimiser."""
    return RULES[_kind(optimizer)]


def _kind(optimizer: Optimizer) -> str:
    """The registered optimiser that this one is, or is derived from without a step of its own."""
    own, base = type(optimizer), registered_base(type(optimizer))
    if base is None:
        raise RecordingError(
            f"no exact dual form is known for {_full_name(own)}; known are {', '.join(known())}. {_ANYWAY}"
        )
    # torch wraps `step` when an optimiser is made; below that it is the same function, or it is not
    if unwrap(own.step) is not unwrap(base.step):
        raise RecordingError(
            f"{_full_name(own)} overrides the step of {known_as(base)}, so its dual form is not known. {_ANYWAY}"
        )
    return registered_name(base)


_ANYWAY = "Pass values=False to record keys only: attention weights work, outputs do not"


def _full_name(optimizer: type[Optimizer]) -> str:
    return f"{optimizer.__module__}.{optimizer.__name__}"


def read(optimizer: Optimizer, parameters: Sequence[tuple[str, Tensor]], rule: Rule | None) -> dict[str, list[float]]:
    """Ledger lines of those parameters this optimiser holds, as if all had gradients. No rule: nothing but that."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    lines: dict[str, list[float]] = {}
    for name, parameter in parameters:
        group = groups.get(id(parameter))
        if group is None:
            raise RecordingError(f"parameter {name!r} was taken out of its optimiser while recording")
        # .get: the state is a defaultdict, and looking must not make an entry
        lines[name] = [1.0, *rule.read(group, optimizer.state.get(parameter, {}))] if rule else [1.0]
    return lines

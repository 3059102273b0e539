"""What the optimisers are about to do, read off them just before they do it."""

from collections.abc import Sequence
from inspect import unwrap

from torch import Tensor
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule, known
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
    """The optimiser of torch that this one is, or is derived from without a step of its own."""
    bases = (base for base in type(optimizer).__mro__ if issubclass(base, Optimizer))
    for base in bases:
        if base.__module__.startswith("torch.optim.") and base.__name__ in RULES:
            # torch wraps `step` when an optimiser is made; below that it is the same function, or it is not
            if unwrap(type(optimizer).step) is not unwrap(base.step):
                raise RecordingError(
                    f"{_name(optimizer)} overrides the step of torch.optim.{base.__name__}, so its dual form is not "
                    f"known. {_ANYWAY}"
                )
            return base.__name__
    raise RecordingError(
        f"no exact dual form is known for {_name(optimizer)}; known are {', '.join(known())}. {_ANYWAY}"
    )


_ANYWAY = "Pass values=False to record keys only: attention weights work, outputs do not"


def _name(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


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

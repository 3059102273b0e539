"""What the optimisers are about to do, read off them just before they do it."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from dualform.algebra import RULES, Rule, known
from dualform.errors import RecordingError
from dualform.store import Optimizer as Description


def describe(optimizer: Optimizer, values: bool) -> Description:
    """The optimiser as the manifest names it. Without values any optimiser will do."""
    kind = type(optimizer).__name__
    if values:
        rule_for(optimizer)
        return Description(kind, RULES[kind].columns)
    return Description(kind, ())


def rule_for(optimizer: Optimizer) -> Rule:
    """The algebra of an optimiser; exactly torch's classes, since a subclass may step differently."""
    kind = type(optimizer).__name__
    if kind not in RULES or not type(optimizer).__module__.startswith("torch.optim."):
        raise RecordingError(
            f"no exact dual form is known for {type(optimizer).__module__}.{kind}; known are "
            f"{', '.join(known())}. Pass values=False to record keys only: attention weights work, outputs do not"
        )
    return RULES[kind]


def read(optimizer: Optimizer, parameters: Sequence[tuple[str, Tensor]], values: bool) -> dict[str, list[float]]:
    """Ledger lines, without their leading `stepped`, of those parameters this optimiser holds."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    lines: dict[str, list[float]] = {}
    for name, parameter in parameters:
        group = groups.get(id(parameter))
        if group is None:
            raise RecordingError(f"parameter {name!r} was taken out of its optimiser while recording")
        # .get: the state is a defaultdict, and looking must not make an entry
        lines[name] = [*rule_for(optimizer).read(group, optimizer.state.get(parameter, {}))] if values else []
    return lines

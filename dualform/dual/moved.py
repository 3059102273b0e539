"""Find parameters that moved without a recorded step: by hand, or by an optimiser that was not passed."""

from dualform.dual.state import stored_tensor
from dualform.store import Run
from dualform.store.schema import STATE_PARAMETERS, state_tensor


def moved_parameters(run: Run) -> dict[str, float]:
    """Return by name how far each moved, as a share of the size it had.

    A recorded step moves what its optimiser holds. Everything else is stored again only where it has changed. What has
    another shape, as quantised weights that were packed in another way, has moved by all of its size.
    """
    stepped, moved = _stepped(run), {}
    for shard in run.shards[1:]:
        for name in (tensor.removeprefix(STATE_PARAMETERS) for tensor in shard.names(STATE_PARAMETERS)):
            if name in stepped:
                continue
            before, now = (stored_tensor(s, state_tensor(name)).double() for s in (run.shards[0], shard))
            difference = now - before if now.shape == before.shape else before
            distance, size = float(difference.norm()), float(before.norm())
            if distance != 0.0:
                moved[name] = distance / size if size else distance
    return moved


def _stepped(run: Run) -> set[str]:
    """Return the parameters of the optimisers that were stepped, as far as the ledger tells."""
    others = {other.parameter: None for other in run.manifest.others}  # a set that keeps their order
    parameters = [parameter for parameter in (*run.manifest.parameters, *others) if parameter.trained]
    in_ledger = [p for p in parameters if p not in others or p.name in run.accounted]
    idle = {p.optimizer for p in in_ledger} - {p.optimizer for p in in_ledger if run.ledger(p.name)[:, :1].any()}
    return {parameter.name for parameter in parameters if run.steps and parameter.optimizer not in idle}

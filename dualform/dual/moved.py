"""Find parameters that moved without a recorded step: by hand, or by an optimiser that was not passed."""

from dualform.dual.state import stored_tensor
from dualform.store import Run
from dualform.store.schema import STATE_PARAMETERS, state_tensor


def moved_parameters(run: Run) -> dict[str, float]:
    """Return by name how far each moved, as a share of the size it had.

    A recorded step moves what its optimiser holds. Everything else is stored again only where it has changed; in a run
    without steps, nothing may have.
    """
    stepped = {p.name for p in run.manifest.parameters if p.trained}
    stepped |= {other.parameter.name for other in run.manifest.others if other.parameter.trained}
    moved = {}
    for shard in run.shards[1:]:
        for name in (tensor.removeprefix(STATE_PARAMETERS) for tensor in shard.names(STATE_PARAMETERS)):
            if run.steps and name in stepped:
                continue
            before, now = (stored_tensor(s, state_tensor(name)).double() for s in (run.shards[0], shard))
            distance, size = float((now - before).norm()), float(before.norm())
            if distance != 0.0:
                moved[name] = distance / size if size else distance
    return moved

"""Replay the parameters that no layer uses from their gradients, and find buffers as they were at a step.

    accounted(run, snapshot, until)         # parameters and buffers after `until` steps, by name
    certify(run)                            # how far replayed parameters are from the snapshots

They are due to no slot, so that no view mutes them; but the model at a step is not itself without them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dualform.algebra import Line, Moments, Rule, Step
from dualform.dual.certificate import LayerCertificate
from dualform.dual.coefficients import parameter_rule
from dualform.dual.distance import Distance, SpanCertificate, distance, rounding_of_weights
from dualform.dual.state import optimizer_entry, stored_parameter, stored_rows, stored_tensor
from dualform.errors import RunError
from dualform.store import Parameter, Run, Shard
from dualform.store.coverage import SNAPSHOTS_ONLY
from dualform.store.schema import BUFFERS, STATE_BUFFERS, buffer_tensor, gradient_tensor, ledger_tensor


@dataclass(frozen=True)
class _State:
    """A parameter between two steps, in the precision it was trained in, or float32 if that was lower."""

    weight: Tensor
    momentum: Tensor | float
    moments: Moments
    decayed: int = 0  # steps


def accounted(run: Run, since: Shard, until: int) -> dict[str, Tensor]:
    """Return the parameters and buffers that are accounted for as they were after `until` steps, by name.

    Args:
        run: The run.
        since: A snapshot at or before that step.
        until: The step.
    """
    known = {}
    for parameter in _parameters(run):
        state = _first(run, since, parameter)
        for line, gradient in _steps(run, parameter, since.info.last_step, until):
            state = _step(parameter_rule(run, parameter), line, gradient, state)
        known[parameter.name] = state.weight.to(stored_parameter(since, parameter).dtype)
    return known | _buffers(run, since, until)


def snapshots_only(run: Run) -> list[str]:
    """Return the parameters and buffers that change, and are known where there are snapshots only."""
    changing = {
        name
        for _, shard in run.chapters
        for name in shard.names(STATE_BUFFERS)
        if buffer_tensor(name.removeprefix(STATE_BUFFERS)) not in shard
    }
    return [*run.coverage.parameters(SNAPSHOTS_ONLY), *sorted(name.removeprefix(STATE_BUFFERS) for name in changing)]


def _buffers(run: Run, since: Shard, until: int) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for _, shard in run.chapters:
        first, last = shard.info.first_step, shard.info.last_step
        if since.info.last_step < until and first < until and last > since.info.last_step:
            for tensor in shard.names(BUFFERS):
                name, row = tensor.removeprefix(BUFFERS), stored_rows(shard, tensor)[min(until, last) - first - 1]
                before = stored_tensor(since, f"{STATE_BUFFERS}{name}")
                if (row.shape, row.dtype) != (before.shape, before.dtype):
                    raise RunError(f"{shard.path} is a corrupt shard: {tensor} is not as the buffer in {since.path}")
                values[name] = row
    return values


def certify(run: Run) -> LayerCertificate | None:
    """Certify the replayed parameters over the whole run, up to its last snapshot, and over each chapter."""
    parameters = _parameters(run)
    last = run.snapshot(run.steps)
    if not parameters or not last.info.last_step:
        return None
    pairs = [(before, shard) for before, shard in run.chapters if before.has_state and shard.has_state]
    whole, *chapters = [_span(run, parameters, before, after) for before, after in [(run.shards[0], last), *pairs]]
    return LayerCertificate(whole, chapters)


def _span(run: Run, parameters: Sequence[Parameter], before: Shard, after: Shard) -> SpanCertificate:
    first, last = before.info.last_step, after.info.last_step
    distances = {parameter.name: _distance(run, parameter, before, after) for parameter in parameters}
    return SpanCertificate(first, last, distances)


def _distance(run: Run, parameter: Parameter, before: Shard, after: Shard) -> Distance:
    start, end = stored_parameter(before, parameter), stored_parameter(after, parameter).double()
    state = _first(run, before, parameter)
    for line, gradient in _steps(run, parameter, before.info.last_step, after.info.last_step):
        state = _step(parameter_rule(run, parameter), line, gradient, state)
    steps = after.info.last_step - before.info.last_step
    floor = rounding_of_weights(steps, end, torch.finfo(start.dtype).eps, state.decayed)
    return distance(state.weight.double(), start.double(), end, floor)


def _parameters(run: Run) -> list[Parameter]:
    return [other.parameter for other in run.manifest.others if other.parameter.name in run.accounted]


def _first(run: Run, snapshot: Shard, parameter: Parameter) -> _State:
    rule = parameter_rule(run, parameter)
    entries = {entry: optimizer_entry(snapshot, parameter, entry, rule.joint) for entry in rule.moments}
    momentum = optimizer_entry(snapshot, parameter, rule.momentum)
    weight = stored_parameter(snapshot, parameter)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return _State(
        weight.to(dtype),
        0.0 if momentum is None else momentum.to(dtype),
        {entry: stored.to(dtype) for entry, stored in entries.items() if stored is not None},
    )


def _steps(run: Run, parameter: Parameter, since: int, until: int) -> Iterator[tuple[Line, Tensor]]:
    """Yield the ledger line and the gradient of each step in which a parameter was stepped."""
    columns = parameter_rule(run, parameter).columns
    for _, shard in run.chapters:
        first, last = shard.info.first_step, min(shard.info.last_step, until)
        if first < since or first >= last:
            continue
        lines, gradients = shard[ledger_tensor(parameter.name)], stored_rows(shard, gradient_tensor(parameter.name))
        for (stepped, *line), gradient in zip(lines[: last - first], gradients[: last - first], strict=True):
            if stepped:
                yield dict(zip(columns, line, strict=True)), gradient


def _step(rule: Rule, line: Line, gradient: Tensor, before: _State) -> _State:
    """Take one step forwards."""
    gradient = gradient.to(before.weight.dtype)
    with np.errstate(all="ignore"):  # infinite or none at all, if a file says so
        g = float(rule.sign(line)) * gradient + float(rule.decay(line)) * before.weight
        moments = rule.moments_after(line, g, before.moments, before.weight)
        step = rule.step(line, moments)
    numbers = {name: float(number) for name, number in vars(step).items() if not isinstance(number, Tensor)}
    exact: Step = replace(step, **numbers)
    momentum = exact.carry * before.momentum + exact.intake * g
    weight = exact.keep * before.weight - rule.times(exact.alpha, g) - rule.times(exact.beta, momentum)
    if rule.remainder is not None:
        weight = weight - rule.remainder(line, g, moments) * exact.rest
    return _State(weight, momentum, moments, before.decayed + (numbers.get("keep", 1.0) != 1.0))

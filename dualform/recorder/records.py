"""Turn an audited step into what the store takes: its ledger lines, residuals, and the rows of the used passes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dualform.kinds.half_precision import HALF, call_codes
from dualform.recorder.audit import AuditedStep
from dualform.recorder.captures import Capture, Packed, Pass, Unstored
from dualform.recorder.plan import RecordingPlan
from dualform.recorder.provenance.calls import choose_tags
from dualform.recorder.tags import Tags, check_same, joined
from dualform.store import Rows, StepRecord, Storage

_NO_FACTORS = np.empty(0)  # of what is not looked at


class UsedPass(NamedTuple):
    """A backward pass through a layer that was in the step's gradient."""

    layer: str
    captures: Sequence[Capture | Unstored]
    tags: Sequence[Tags]  # of each
    factors: NDArray[np.float64]  # (trained uses,)
    precision: int = 0  # code of the precision that its gradient was rounded to
    apart: bool = False  # its calls were summed up after that

    @property
    def columns(self) -> list[Mapping[str, NDArray[Any]]]:
        """The tags of all rows, of each capture."""
        return [
            tags.over(capture.call.layout(self.layer, capture.number, capture.leading) or capture.leading, self.layer)
            if tags.kinds
            else {}
            for capture, tags in zip(self.captures, self.tags, strict=True)
        ]


def used_passes(step: AuditedStep) -> list[UsedPass]:
    """Return the passes that were in a gradient; the others were zeroed before the step: all factors are 0."""
    used = [
        UsedPass(evidence.layer.name, _own(of_pass), (), factors, apart=explanation.apart)
        for evidence, explanation in zip(step.evidence.layers, step.explanations, strict=True)
        for of_pass, factors in zip(evidence.passes.values(), explanation.factors, strict=True)
        if factors.any()
    ]
    for layer, passes in step.evidence.unstored.items():
        counted = [of_pass for of_pass in passes.values() if of_pass.accumulated] or [*passes.values()]
        used += [UsedPass(layer, of_pass.captures, (), _NO_FACTORS) for of_pass in counted]
    tags = choose_tags({capture.call for of_pass in used for capture in of_pass.captures}, step.number)
    return [of_pass._replace(tags=[tags[capture.call] for capture in of_pass.captures]) for of_pass in used]


def _own(of_pass: Pass) -> list[Capture]:
    return [capture for capture in of_pass.captures if isinstance(capture, Capture)]


def check_tags(
    passes: Iterable[UsedPass], expected: Mapping[str, str] | None, merge: str | None, step: int
) -> Mapping[str, str] | None:
    """Raise unless all passes have the expected tags; returns what to expect next, which the first pass says."""
    for tags in (tags for used in passes for tags in used.tags):
        kinds = tags.kinds
        if merge:  # nothing else is the same for all that is summed up
            kinds = tags.only(merge, step)
        if expected is None:
            expected = kinds
        check_same(kinds, expected, step)
    return expected


def as_record(plan: RecordingPlan, step: AuditedStep, passes: Iterable[UsedPass], rank: int = 0) -> StepRecord:
    """Put a step together: the rows of some passes, and what the first process keeps: lines and residuals of layers."""
    rows: dict[str, list[Rows]] = {}
    for used in passes:
        for part in _parts(plan, used):
            rows.setdefault(used.layer, []).append(_as_rows(part, plan.storage))
    if rank:
        return StepRecord({}, {}, rows)
    residual = dict.fromkeys((layer.name for layer in plan.layers), float("nan"))  # of layers that are not stepped
    for evidence, explanation in zip(step.evidence.layers, step.explanations, strict=True):
        residual[evidence.layer.name] = explanation.residual
    accounts = step.evidence.accounts
    idle = {name: plan.other_idle_lines[name] for name in accounts.gradients}
    lines = {**plan.idle_lines, **idle, **step.evidence.lines}
    return StepRecord(lines, residual, rows, accounts, step.evidence.witness)


def _parts(plan: RecordingPlan, used: UsedPass) -> list[UsedPass]:
    """Return a pass as it is stored: whole, or each call by itself, where the gradient of each matters.

    It does where each was rounded to half precision by itself, and where gradients that cancel to mere rounding make
    steps of full size, as Adam's do: torch sums up those of several calls from the last call to the first.
    """
    rounded = plan.storage.values and any(capture.precision in HALF for capture in used.captures)
    if rounded:
        codes = call_codes((capture.precision for capture in used.captures), apart=used.apart)
    elif used.layer in plan.magnified or len({capture.extents for capture in used.captures}) > 1:
        codes = [0] * len(used.captures)
    else:
        return [used]
    calls = [
        used._replace(captures=[capture], tags=[tags], precision=code)
        for capture, tags, code in zip(used.captures, used.tags, codes, strict=True)
    ]
    return calls if rounded else calls[::-1]


def _as_rows(used: UsedPass, storage: Storage) -> Rows:
    packed = [capture for capture in used.captures if isinstance(capture, Capture)]
    unstored = [capture.nbytes for capture in used.captures if isinstance(capture, Unstored)]
    keys, key_exponent = _arrays([capture.keys for capture in packed]) if packed else (None, None)
    with_values = packed and storage.values
    values, value_exponent = _arrays([capture.values for capture in packed]) if with_values else (None, None)
    return Rows(
        keys=keys,
        key_exponent=key_exponent,
        values=values,
        value_exponent=value_exponent,
        factors=used.factors,
        tags=joined(used.columns),
        may_repeat=all(capture.may_repeat for capture in packed),
        precision=used.precision,
        extents=used.captures[0].extents,
        slots=sum(capture.slots for capture in used.captures),
        unstored_nbytes=sum(unstored),
    )


def _arrays(packed: Sequence[Packed]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if len(packed) == 1:
        return packed[0].rows.numpy(), packed[0].exponent
    exponents = [part.exponent for part in packed if part.exponent is not None]
    return torch.cat([part.rows for part in packed]).numpy(), np.concatenate(exponents) if exponents else None

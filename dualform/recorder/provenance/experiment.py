"""Find out whose each row of each layer is, by an experiment: call a module again, and see which rows answer to whom.

The examples are permuted: an output that is permuted along one of its axes has its batch there (reading.py). Then the
output's gradient is scaled, example by example, by powers of two: 2 ** digit, once for each digit of the example's
number. A row whose error is scaled *bit for bit* by one example's factors is that example's; any other row with an
error is shared. Multiplying by a power of two is exact in every precision, so nothing needs a tolerance there. Last,
keys must agree: in the permuted call each example has the keys it had before, where the example was whose place it
took.

Nothing is left of it on the module (untouched.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualform.errors import RecordingError
from dualform.recorder.layers import SEED
from dualform.recorder.provenance.layout import PACKED, SHARED, UNKNOWN, Batch, Form, Owners, forms
from dualform.recorder.provenance.reading import OutputAxis, Reading, find_reading, main_input
from dualform.recorder.provenance.rows import Agreement, agreement, origins, owners_of
from dualform.recorder.provenance.signature import replace as replace_tensors
from dualform.recorder.provenance.trial import LayerCall, Place, Subject, Trial, Unproven, attempt
from dualform.recorder.provenance.untouched import untouched


@dataclass(frozen=True)
class Finding:
    """Whose the rows of one call of a layer are."""

    leading: tuple[int, ...]
    owners: Owners  # SHARED where a row has none
    forms: frozenset[Form] = frozenset()  # that say the same; none: the rows follow no form
    moves: bool = False  # with the data: the next batch may lie differently
    incomplete: bool = False  # it could not be told of some rows, which have no owner here

    def at(self, leading: tuple[int, ...], batch: int) -> Owners | None:
        """Return the owners of rows of these dimensions; None if that is not known."""
        if leading == self.leading or PACKED not in self.forms:
            return self.owners if leading == self.leading else None
        return PACKED.owners(leading, batch)  # of other lengths


@dataclass(frozen=True)
class Findings:
    """What an experiment found out."""

    batch: Batch
    outputs: Sequence[OutputAxis]
    layers: Mapping[Place, Finding]


def explore(subject: Subject, expected: int | None) -> Findings:
    """Find out whose each row is.

    Args:
        subject: The call, which is made several times again.
        expected: The number of examples, as far as tags tell.

    Raises:
        Unproven: With the reason, if nothing can be told.
        RecordingError: If keys and errors of a layer belong to different examples.
    """
    main = main_input(subject, expected)
    with untouched(subject.module, evaluating=True):
        first = attempt(subject)
        reading = find_reading(subject, first, main)
        owners = _owners(subject, first, reading)
        findings = {
            place: _settle(call, owners[place], reading.permuted.calls.get(place), reading)
            for place, call in first.calls.items()
        }
        doubtful = [place for place, of_place in findings.items() if of_place.moves and of_place.forms]
        if doubtful and not reading.evidence.sure:
            raise Unproven("outputs hardly differ between examples, and keys do not tell more")
        if doubtful:
            again = _owners(subject, reading.permuted, reading)
            for place in doubtful:
                _check(findings[place], again[place], place[0], reading)
        reading = replace(reading, permuted=Trial([], {}))  # lets go of its graph
        findings = _with_other_data(subject, reading, findings)
    return Findings(reading.batch, reading.outputs, findings)


def _with_other_data(subject: Subject, reading: Reading, findings: Mapping[Place, Finding]) -> dict[Place, Finding]:
    """See which rows are somebody else's when numbers change places: those move with the data.

    An expert may have got a row of each example by chance.
    """
    try:
        trial = attempt(subject, _shuffled)
        owners = _owners(subject, trial, reading)
    except Unproven:  # not all numbers can be anywhere
        return dict(findings)
    moved = {place[0] for place, call in trial.calls.items() if place not in findings and call.errors is not None}
    for place, of_place in findings.items():
        call = trial.calls.get(place)
        before = None if call is None else of_place.at(call.leading, reading.batch.size)
        if call is None or before is None:
            moved.add(place[0])
        elif call.errors is None or bool(call.errors.isfinite().all()):
            both = (owners[place] >= 0) & (before >= 0)
            moved |= {place[0]} if (owners[place] != before)[both].any() else set()
    return {
        place: replace(of_place, moves=True) if place[0] in moved else of_place for place, of_place in findings.items()
    }


def _shuffled(arguments: Any) -> Any:
    generator = torch.Generator().manual_seed(SEED)

    made: dict[int, Tensor] = {}  # what is passed twice stays the same tensor

    def shuffle(tensor: Tensor) -> Tensor:
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        return made.setdefault(id(tensor), tensor.reshape(-1)[order].view(tensor.shape))

    return replace_tensors(arguments, shuffle)


def explore_again(subject: Subject, findings: Findings) -> dict[Place, tuple[Finding, Tensor]]:
    """Find out whose rows are in one call, in its own mode and with its random state; returns their keys, too."""
    with untouched(subject.module, evaluating=False):
        trial = attempt(subject)
        owners = _owners(subject, trial, findings)
    return {place: (_known(call, owners[place], moves=True), call.keys) for place, call in trial.calls.items()}


def _owners(subject: Subject, trial: Trial, reading: "Reading | Findings") -> dict[Place, Owners]:
    """Return whose rows are by their errors, UNKNOWN where these are zero."""
    batch, base = reading.batch.size, min((call.base for call in trial.calls.values()), default=16)
    for call in trial.calls.values():
        call.base = base
    digits = max(1, ceil(log(batch, base) - 1e-9))
    outputs = _followed(trial, reading, batch)
    generator = torch.Generator().manual_seed(SEED)
    gradients = [torch.randn(output.shape, generator=generator).to(output) for output, _ in outputs]
    for digit in range(-1, digits):
        factors = 2.0 ** (np.arange(batch) // base**digit % base) if digit >= 0 else np.ones(batch)
        scaled = [axis.scaled(gradient, factors) for gradient, (_, axis) in zip(gradients, outputs, strict=True)]
        torch.autograd.grad(
            [output for output, _ in outputs], _parameters(subject), scaled,
            retain_graph=digit < digits - 1, allow_unused=True,
        )  # fmt: skip
    return {place: _by_errors(call, batch) for place, call in trial.calls.items()}


def _followed(trial: Trial, reading: "Reading | Findings", batch: int) -> list[tuple[Tensor, OutputAxis]]:
    """Return the outputs that are followed back, and where the examples are in them."""
    of_axes = [(trial.outputs[axis.output], axis) for axis in reading.outputs if axis.output < len(trial.outputs)]
    followed = [(output, axis) for output, axis in of_axes if output.requires_grad and axis.fits(output, batch)]
    if not followed:
        raise Unproven("no output that is laid out by examples can be followed back")
    return followed


def _parameters(subject: Subject) -> list[Tensor]:
    """Return parameters of each layer, whose gradients take the errors of all of the layer's calls.

    A bias is in all of them, and its gradient is the cheapest. Without one, weights are taken together: each may be for
    a part of the key that is 0 in some calls.
    """
    chosen = []
    for layer in subject.layers:
        uses, names = len(layer.description.attended), layer.own_names
        chosen += [layer.module._parameters[name] for name in names[uses:][:1] or names[:uses]]
    return list({id(p): p for p in chosen if p is not None and p.requires_grad}.values())


def _by_errors(call: LayerCall, batch: int) -> Owners:
    if call.errors is None or not call.digits:
        return np.full(len(call.keys), UNKNOWN)
    return owners_of(call.digits, call.base, batch)


def _known(call: LayerCall, owners: Owners, moves: bool) -> Finding:
    """Return what errors alone say; the other rows are taken for shared."""
    unknown = owners == UNKNOWN
    return Finding(call.leading, np.where(unknown, SHARED, owners), moves=moves, incomplete=bool(unknown.any()))


def _settle(call: LayerCall, owners: Owners, other: LayerCall | None, reading: Reading) -> Finding:
    """Fill in rows without an error by a form that fits the others, and see whether keys agree with it."""
    if other is None or tuple(other.leading) != tuple(call.leading):
        return _known(call, owners, moves=True)
    known = owners != UNKNOWN
    fitting: dict[bytes, list[tuple[Form, Owners]]] = {}  # forms that say the same are together
    for form, filled in forms(call.leading, reading.batch.size):
        if (filled[known] == owners[known]).all():
            fitting.setdefault(filled.tobytes(), []).append((form, filled))
    if not fitting:
        moves = _agreement(call, other, owners, reading) is not Agreement.YES
        return _known(call, owners, moves=moves)
    verdicts = {
        filled.tobytes(): _agreement(call, other, filled, reading, form.owners(other.leading, reading.batch.size))
        for ((form, filled), *_) in fitting.values()
    }
    best = [same for place, same in fitting.items() if verdicts[place] is Agreement.YES] or [
        same for place, same in fitting.items() if verdicts[place] is Agreement.MAYBE
    ]
    if not best and not known.any():
        return _known(call, owners, moves=True)
    if len(best) > 1 or (not best and len(fitting) > 1):
        return _known(call, owners, moves=False)
    same = best[0] if best else next(iter(fitting.values()))
    # Keys that stay where they are may be shared, or may all be one example's
    guessed = bool(not known.any() and (same[0][1] == SHARED).all())
    return Finding(call.leading, same[0][1], frozenset(form for form, _ in same), not best, incomplete=guessed)


def _agreement(
    call: LayerCall, other: LayerCall, owners: Owners, reading: Reading, after: Owners | None = None
) -> Agreement:
    """Return whether keys have moved with their owners; those of shared rows may have changed in any way."""
    origin, owned = origins(owners, reading.order, after), owners >= 0
    if origin is None:
        return Agreement.NO
    if owned.any():
        return agreement(call.keys, other.keys, origin, owned)
    stayed = agreement(call.keys, other.keys, origin)
    return Agreement.MAYBE if stayed is not Agreement.NO or call.errors is not None else Agreement.NO


def _check(finding: Finding, again: Owners, layer: str, reading: Reading) -> None:
    """Raise if rows follow the same form when examples are permuted, but their keys do not."""
    known = again != UNKNOWN
    if known.any() and (again[known] == finding.owners[known]).all():
        raise RecordingError(
            f"layer {layer!r} has rows of shape {finding.leading}, from a batch of {reading.batch.size}, whose errors "
            "belong to other examples than their keys do: no tag can be right for both. Leave the layer out with "
            "exclude=..., or have tags read by the shape of the rows with provenance=False"
        )

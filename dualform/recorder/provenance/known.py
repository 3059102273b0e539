"""Keep what experiments found out: for each signature, and forms that hold for calls of all sizes.

    known = Known.of(findings)
    known.layout(("fc", 0), (32,))          # whose the rows of the first call of a layer are

Batches of ever new lengths must not cost an experiment each.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from typing import Any

from dualform.errors import RecordingError
from dualform.kinds import Ragged
from dualform.recorder.provenance.experiment import Finding, Findings
from dualform.recorder.provenance.layout import Batch, Form, Layout, Owners
from dualform.recorder.provenance.signature import tensors
from dualform.recorder.provenance.trial import Place

_SIZES = 3  # for which forms have to be the same, to be taken for further ones; and for which nothing could be told


@dataclass
class Known:
    """What is known of calls of one signature."""

    findings: Findings | None = None
    forms: dict[str, frozenset[Form]] = field(default_factory=dict)  # of each layer, where no experiment was made
    batch: Batch | None = None  # None: nothing could be proven, or something is wrong
    error: RecordingError | None = None
    moving: set[str] = field(default_factory=set)  # layers whose rows move with the data
    calls: int = 0  # so far
    layouts: dict[tuple[Place, tuple[int, ...]], Layout | None] = field(default_factory=dict)
    _shared: dict[tuple[tuple[int, ...], bytes], Layout] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Findings) -> "Known":
        moving = {layer for (layer, _), finding in findings.layers.items() if finding.moves}
        return cls(findings, batch=findings.batch, moving=moving)

    def layout(self, place: Place, leading: tuple[int, ...]) -> Layout | None:
        """Return whose the rows of a layer's call are; None if that cannot be known beforehand."""
        if place[0] in self.moving:
            return None
        if isinstance(leading, Ragged):  # of other lengths in each batch
            owners = self._owners(place, leading)
            return None if owners is None or self.batch is None else Layout(self.batch, leading, owners)
        key = place, leading
        if key not in self.layouts:
            owners = self._owners(place, leading)
            self.layouts[key] = None if owners is None else self.as_layout(leading, owners)
        return self.layouts[key]

    def contradicts(self, place: Place, again: Finding) -> bool:
        """Return whether rows that are not known to move are somebody else's in another call."""
        before = self.layout(place, again.leading)
        if before is None:
            return False
        both = (before.owners >= 0) & (again.owners >= 0)
        return bool((before.owners != again.owners)[both].any())

    def had_owners(self, place: Place) -> bool:
        """Return whether rows of a layer's call were single examples', in evaluation mode."""
        finding = self.findings.layers.get(place) if self.findings else None
        return finding is not None and bool((finding.owners >= 0).any())

    def as_layout(self, leading: tuple[int, ...], owners: Owners) -> Layout:
        """Return a layout: the same one for layers with the same rows, so that tags are spread over them once."""
        assert self.batch is not None
        return self._shared.setdefault((leading, owners.tobytes()), Layout(self.batch, leading, owners))

    def _owners(self, place: Place, leading: tuple[int, ...]) -> Owners | None:
        assert self.batch is not None
        if self.findings is not None:
            finding = self.findings.layers.get(place)
            return None if finding is None else finding.at(leading, self.batch.size)
        filled = [form.owners(leading, self.batch.size) for form in self.forms.get(place[0], ())]
        first = next((owners for owners in filled if owners is not None), None)
        agreed = first is not None and all(owners is None or (owners == first).all() for owners in filled)
        return first if agreed else None


class Patterns:
    """Findings for calls that differ in sizes only, by everything else there is to say of them."""

    def __init__(self) -> None:
        self._findings: dict[Hashable, list[Findings]] = defaultdict(list)
        self._failures: Counter[Hashable] = Counter()

    def add(self, pattern: Hashable, findings: Findings) -> None:
        self._findings[pattern].append(findings)

    def fail(self, pattern: Hashable) -> None:
        """Note that nothing could be proven."""
        self._failures[pattern] += 1

    def predict(self, pattern: Hashable, arguments: Any, expected: int | None) -> Known | None:
        """Return what holds for a call of another size; None if too little is known."""
        findings = self._findings.get(pattern, [])
        if not findings and self._failures[pattern] >= _SIZES:
            return Known()
        if len(findings) < _SIZES or any(finding.moves for of_size in findings for finding in of_size.layers.values()):
            return None
        forms: dict[str, frozenset[Form]] = {}
        for (layer, _), finding in (item for of_size in findings for item in of_size.layers.items()):
            forms[layer] = forms.get(layer, finding.forms) & finding.forms
        batch = _batch([of_size.batch for of_size in findings], arguments)
        if batch is None or not all(forms.values()) or expected not in (None, batch.size):
            return None
        return Known(forms=forms, batch=batch)


def _batch(seen: list[Batch], arguments: Any) -> Batch | None:
    """Return the batch of a call, where it was in the others; None if it was not always in one place."""
    first, shapes = seen[0], [tuple(tensor.shape) for tensor in tensors(arguments)]
    if {(batch.main, batch.axis, batch.either) for batch in seen} != {(first.main, first.axis, False)}:
        return None
    shape = shapes[first.main]
    square = len(shape) > 1 and shape[0] == shape[1]  # the other axis may be one, too, which only an experiment tells
    return None if square else replace_field(first, size=shape[first.axis], shape=shape)

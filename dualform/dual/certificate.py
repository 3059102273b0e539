"""Certify a run: measure the distance between its primal and its dual form."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import Any

import numpy as np

from dualform.dual.distance import SpanCertificate
from dualform.dual.moved import moved_parameters
from dualform.dual.rebuilt import sharing
from dualform.dual.rounding import half_precisions
from dualform.engine import in_one_pass
from dualform.store import Run
from dualform.store.coverage import Coverage
from dualform.store.schema import AUDIT, DTYPES, PASS_PRECISIONS, state_tensor
from dualform.store.summary import worst_residual

EXACT, NOT_EXACT, NOT_CERTIFIABLE = "exact", "not exact", "not certifiable"


@dataclass(frozen=True)
class LayerCertificate:
    """A layer over the whole run (None: no steps), and over each chapter."""

    whole: SpanCertificate | None
    chapters: list[SpanCertificate]
    # why it failed, if it did: of each parameter, the share of its gradients that is only rounding
    cancelled: Mapping[str, float] = field(default_factory=dict)
    autocast: str | None = None  # the half precision that gradients were rounded to, where weights are in a wider one
    own_rounding: bool = False  # whether `rounding` is the optimiser's own, and not that of gradients
    half_weights: str | None = None  # the half precision that weights are in themselves

    @property
    def relative_error(self) -> float:
        """The largest of its parameters: |dual - primal| / |W_T - W_0|."""
        return self.whole.relative_error if self.whole else 0.0

    @property
    def rounding(self) -> float:
        """The largest share of a parameter's change that rounding to half precision added: in no slot."""
        distances = self.whole.parameters.values() if self.whole else ()
        moved = [distance for distance in distances if not distance.no_net_gradient]
        return max((distance.rounding / max(distance.change, 1e-300) for distance in moved), default=0.0)

    def failed(self, tolerance: float) -> list[SpanCertificate]:
        """Return the spans that are not exact."""
        spans = [*self.chapters, *([self.whole] if self.whole else [])]
        return [span for span in spans if not span.ok(tolerance)]

    def ok(self, tolerance: float) -> bool:
        """Return whether the whole run and each chapter are exact."""
        return not self.failed(tolerance)

    def of_weights_in(self, half_weights: str | None) -> "LayerCertificate":
        """Say that weights are in half precision: to round them would explain changes of any size, so it may not."""
        if half_weights is None:
            return self
        whole, chapters = self.whole and self.whole.without_floor(), [span.without_floor() for span in self.chapters]
        return replace(self, whole=whole, chapters=chapters, half_weights=half_weights)

    def to_dict(self, tolerance: float) -> dict[str, Any]:
        """Return the facts as data, with a note on each parameter that needs one."""
        parameters = {}
        for name, distance in (self.whole.parameters if self.whole else {}).items():
            share, note = self.cancelled.get(name, 0.0), None
            if share and not distance.ok(tolerance):
                note = (
                    f"NOT EXACT: {100 * share:.3g}% of its gradients are only rounding, which the optimiser magnifies"
                )
            elif distance.no_net_gradient:
                note = "no net gradient"
            parameters[name] = {"relative_error": distance.relative, "note": note}
        return {
            "relative_error": self.relative_error,
            "ok": self.ok(tolerance),
            "autocast": self.autocast,
            "rounding": self.rounding,
            "parameters": parameters,
            "chapters": [
                {"first_step": span.first_step, "last_step": span.last_step, "relative_error": span.relative_error}
                for span in self.chapters
            ],
        }


@dataclass(frozen=True)
class Certificate:
    """Made by `memory.verify()`; `ok` if all that moved is within the tolerance of its storage precision."""

    layers: dict[str, LayerCertificate]
    accounted: LayerCertificate | None  # parameters that no layer uses, replayed; None: there are none
    moved: Mapping[str, float]  # parameters that no recorded step has moved: by how much of the size they had
    coverage: Coverage
    tolerance: float
    steps: int
    steps_certified: int
    steps_audited: int
    worst_residual: float
    keys_only: bool
    unread: str | None
    notes: Sequence[str] = ()  # what the recorder had to say

    @property
    def ok(self) -> bool:
        """Whether everything is exact."""
        return self.status == EXACT

    @property
    def status(self) -> str:
        """`"exact"`, `"not exact"`, or `"not certifiable"`: there is nothing that could prove the one or the other."""
        if self.unread is not None or self.moved or (self._failed and not self.uncertifiable):
            return NOT_EXACT
        return NOT_CERTIFIABLE if self._obstacle or self.uncertifiable else EXACT

    @property
    def _obstacle(self) -> str | None:
        """Why there is nothing to measure; None: there is."""
        if not self.steps:
            return "no step was recorded"
        if self.keys_only:
            return "keys only"
        if not self.steps_certified:
            return f"no snapshot was taken after any of {self.steps:,} steps"
        return None

    @property
    def _certificates(self) -> list[LayerCertificate]:
        return [*self.layers.values(), *([self.accounted] if self.accounted else [])]

    @property
    def _failed(self) -> list[SpanCertificate]:
        return [span for certificate in self._certificates for span in certificate.failed(self.tolerance)]

    @property
    def relative_error(self) -> float:
        """The largest of all layers."""
        return max((certificate.relative_error for certificate in self._certificates), default=0.0)

    @property
    def uncertifiable(self) -> str | None:
        """Why what failed cannot be certified: weights are in half precision. None: nothing failed, or others did."""
        failed = [certificate.half_weights for certificate in self._certificates if not certificate.ok(self.tolerance)]
        if not failed or None in failed:
            return None
        names = " and ".join(sorted({name for name in failed if name}))
        return (
            f"weights are in {names}: every step rounds them, and all that the optimiser does, by more than the "
            "tolerance. Train with weights in float32, under autocast"
        )

    @property
    def headline(self) -> str:
        """The result in one line, and how much of the model it is about."""
        return f"{self._result}; {self.coverage}"

    @property
    def _result(self) -> str:
        if self.moved:
            name, distance = max(self.moved.items(), key=lambda item: item[1])
            others = f", and {len(self.moved) - 1} more" if len(self.moved) > 1 else ""
            steps = "no step was recorded" if not self.steps else "not by a recorded step"
            return f"NOT EXACT: {name!r} moved by {distance:.1e} of its size{others}, and {steps}"
        if self._failed:
            worst = max(self._failed, key=lambda span: span.relative_error)
            bound = f"tolerance {self.tolerance:.0e}{self._rounding_note}"
            where = f"steps {worst.first_step:,} to {worst.last_step:,} ({bound})"
            verdict = f"NOT CERTIFIABLE: {self.uncertifiable}" if self.uncertifiable else "NOT EXACT"
            return f"{verdict}: dual and primal differ by {worst.relative_error:.1e} in {where}"
        if self.unread is not None:
            return "NOT EXACT: not all of the run could be read"
        if self._obstacle:
            return f"NOT CERTIFIABLE: {self._obstacle}"
        within = f"tolerance {self.tolerance:.0e}" if self.relative_error <= self.tolerance else "within rounding"
        return f"dual = primal to {self.relative_error:.1e} ({within}{self._rounding_note})"

    @property
    def _rounding_note(self) -> str:
        """Name the precision of autocast, and say what its rounding of gradients comes to, or the optimiser's own."""
        names = " and ".join(sorted({layer.autocast for layer in self.layers.values() if layer.autocast}))
        shares = dict.fromkeys((False, True), 0.0)
        for layer in self.layers.values():
            shares[layer.own_rounding] = max(shares[layer.own_rounding], layer.rounding)
        of_gradients, own = (f", {share:.0e} of the change, in no slot" if share else "" for share in shares.values())
        note = f"; with the rounding of {names} autocast{of_gradients}" if names else ""
        return f"{note}; with the optimiser's own rounding{own}" if own else note

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as data."""
        return {
            "ok": self.ok,
            "status": self.status,
            "headline": self.headline,
            "uncertifiable": self.uncertifiable,
            "relative_error": None if self.keys_only else self.relative_error,
            "tolerance": self.tolerance,
            "layers": {name: layer.to_dict(self.tolerance) for name, layer in self.layers.items()},
            "accounted": self.accounted.to_dict(self.tolerance) if self.accounted else None,
            "moved": dict(self.moved),
            "coverage": self.coverage.to_dict(),
            "notes": list(self.notes),
            "steps": self.steps,
            "steps_certified": self.steps_certified,
            "steps_audited": self.steps_audited,
            "worst_residual": self.worst_residual,
            "keys_only": self.keys_only,
            "unread": self.unread,
        }

    def __str__(self) -> str:
        lines = [self.headline]
        accounted = {"accounted for": self.accounted} if self.accounted else {}
        for name, layer in {**self.layers, **accounted}.items():
            mark = "ok" if layer.ok(self.tolerance) else "NOT EXACT"
            lines.append(f"  {name}: relative error {layer.relative_error:.1e}  {mark}")
            parameters = layer.to_dict(self.tolerance)["parameters"]
            lines += [f"    {parameter}: {facts['note']}" for parameter, facts in parameters.items() if facts["note"]]
        lines.append(
            f"  {self.steps_certified:,} of {self.steps:,} steps certified, {self.steps_audited:,} audited "
            f"(residual {self.worst_residual:.1e} at worst)"
        )
        lines += [
            f"  {name}: moved by {share:.1e} of its size, not by a recorded step" for name, share in self.moved.items()
        ]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *([f"  not read: {self.unread}"] if self.unread else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def verify(
    run: Run,
    certify: Callable[[str], LayerCertificate],
    accounted: Callable[[Run], LayerCertificate | None],
    progress: Callable[[str], None] = lambda layer: None,
) -> Certificate:
    """Read every byte of a run, and certify it layer by layer; `progress` is called with each layer's name."""
    for shard in (shard for shards in run.chains for shard in shards):
        shard.check()
    storage = run.manifest.storage

    def certified(name: str) -> LayerCertificate:
        progress(name)
        certificate = certify(name)  # first: where slots are made again, all layers wait for them here
        half_weights = _half_precision(run, [use.parameter.name for use in run.layers[name].trained])
        autocast = None if half_weights else half_precisions(run, sharing(run.manifest, run.layers[name]))
        return replace(certificate, autocast=autocast).of_weights_in(half_weights)

    names = list(run.layers) if storage.values and run.steps else []
    layers = dict(zip(names, in_one_pass(run, [partial(certified, name) for name in names]), strict=True))
    replayed = accounted(run) if storage.values else None
    return Certificate(
        layers=layers,
        accounted=replayed and replayed.of_weights_in(_half_precision(run, run.accounted)),
        moved=moved_parameters(run),
        coverage=run.coverage,
        tolerance=storage.precision.tolerance,
        steps=run.steps,
        steps_certified=run.snapshot(run.steps).info.last_step,
        steps_audited=len(_audited_steps(run)),
        worst_residual=worst_residual(run),
        keys_only=not storage.values,
        unread=run.unread,
        notes=run.notes,
    )


def _half_precision(run: Run, parameters: Iterable[str]) -> str | None:
    """Return the half precision that one of these parameters is in; None: all are in wider ones."""
    names = {DTYPES[run.final.dtype(state_tensor(parameter))] for parameter in parameters}
    return " and ".join(sorted(names & {*PASS_PRECISIONS})) or None


def _audited_steps(run: Run) -> set[int]:
    """Return the steps whose gradients were explained, while recording or when their slots were made again."""
    audited = {*(run.replay.residuals if run.replay else ())}
    for _, shard in run.chapters:
        residuals = [shard[name] for name in shard.names(AUDIT)]
        explained = (~np.isnan(np.stack(residuals))).any(axis=0) if residuals else np.empty(0)
        audited |= {shard.info.first_step + step for step in np.flatnonzero(explained).tolist()}
    return audited

"""The training slots behind an answer, per layer: `spotlight`."""

from typing import Any

from dualform import LayerSpotlight, Question, Table, Timeline, Top, Total
from dualform.companions import in_precision_of
from dualform.errors import Refused, UnknownName
from dualform.viewer import code
from dualform.viewer.classes import LABEL, TASK
from dualform.viewer.jobs import Progress
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.requests import SpotlightRequest
from dualform.viewer.resolved_input import resolve_input

_TIMELINE_BINS = 60
_WARMING_QUERIES = 4  # after which a layer keeps what makes further ones quick
_NO_TAGS = ("query", "score", "slot", "step", "visits", "coefficient")  # columns that are none
_NO_CLASSES = "slots have no classes: record with recorder.tag(label=...), at most 200 different ones"


class Spotlights:
    """Answers about attention weights."""

    def __init__(self, run: OpenedRun) -> None:
        self._run, self._memory = run, run.memory
        self.per = [tag for tag in self._memory.tags if tag not in (TASK, LABEL)]

    def spotlight(self, request: SpotlightRequest) -> dict[str, Any]:
        """Answer which slots a layer attends to: single ones or by `per`, by class, over training time."""
        resolved = resolve_input(self._run, request.input)
        if resolved.token is not None:
            raise Refused("the spotlight of a prompt is in passages: ask `passages`")
        questions = self._questions(request.per, request.top, request.curve)
        assert self._run.network is not None
        spotlight = self._memory.attend(self._run.network, resolved.row)
        layer, note = spotlight[request.layer], spotlight.note
        rows = len(layer.queries)
        if rows > 1:  # attention is linear: the weights of several queries add up to that of their sum
            layer = self._memory.attend({layer.name: layer.queries.sum(dim=0, keepdim=True)})[layer.name]
            note = f"summed over the {rows} rows this layer has for the input. {note or ''}".strip()
        lines = code.spotlight(request.layer, rows > 1, questions)
        return {
            "layer": request.layer,
            "note": note,
            "python": "\n".join([*resolved.python, "", *lines]),
            "absent": self._absent(),
            **self._answers(layer, questions),
        }

    def warm_up(self, progress: Progress = lambda share: None) -> None:
        """Ask what the page will ask until further answers are quick."""
        network, inputs = self._run.network, self._run.inputs
        if "spotlight" in self._run.cannot or network is None or inputs is None:
            return
        rows = in_precision_of(network, inputs.inputs[:_WARMING_QUERIES])
        questions = self._questions(self.per[0] if self.per else None, SpotlightRequest.top, SpotlightRequest.curve)
        spotlight = self._memory.attend(network, rows)
        for number, name in enumerate(spotlight):
            progress(number / len(spotlight))
            spotlight[name].collect(*questions.values())

    def _questions(self, per: str | None, top: int, curve: int) -> dict[str, Question]:
        if per is not None and per not in self.per:
            raise UnknownName("tag to sum visits over called", per, self.per)
        merged, by = self._memory.merged_by, self._run.classes.by
        questions: dict[str, Question] = {"top": Top(top, per=merged or per)}
        if by and not merged:
            questions |= {"curves": Top(curve, by=by), "totals": Total(by=by)}
        if not merged:
            questions["timeline"] = Timeline(min(_TIMELINE_BINS, max(1, self._memory.steps)))
        return questions

    def _absent(self) -> dict[str, str]:
        """Say why this run has no answer to some of the questions."""
        merged = self._memory.merged_by
        if merged:
            reason = f"this run holds sums over all visits to the same {merged}"
            return {"curves": reason, "totals": reason, "timeline": f"{reason}: no training time"}
        return {} if self._run.classes.by else {"curves": _NO_CLASSES, "totals": _NO_CLASSES}

    def _answers(self, layer: LayerSpotlight, questions: dict[str, Question]) -> dict[str, Any]:
        tables = dict(zip(questions, layer.collect(*questions.values()), strict=True))
        answers: dict[str, Any] = {"curves": [], "totals": [], "timeline": None}
        answers["top"] = [self._slot(row) for row in tables["top"].rows()]
        if "curves" in tables:
            # to as many digits as a curve shows: half the bytes
            curves = self._by_class(tables["curves"], "score")
            answers["curves"] = [{"class": k, "scores": [float(f"{s:.5g}") for s in v]} for k, v in curves]
            answers["totals"] = [{"class": k, "total": v[0]} for k, v in self._by_class(tables["totals"], "total")]
        if "timeline" in tables:
            answers["timeline"] = tables["timeline"].without("query").to_dict()
        return answers

    def _slot(self, row: dict[str, Any]) -> dict[str, Any]:
        classes, pictures = self._run.classes, self._run.pictures
        return {
            "score": row["score"],
            "slot": row.get("slot"),
            "step": row.get("step"),
            "visits": row.get("visits"),
            "coefficient": row.get("coefficient"),
            "class": classes.of_row(row) if classes.by else None,
            "pixels": None if pictures is None else pictures.training(row.get("id")),
            "tags": {name: value for name, value in row.items() if name not in _NO_TAGS},
        }

    def _by_class(self, table: Table, column: str) -> list[tuple[int, list[float]]]:
        """Return the numbers of a column by class, as the page lists classes."""
        values: dict[int | None, list[float]] = {}
        for row in table.rows():
            values.setdefault(self._run.classes.of_row(row), []).append(row[column])
        return [(number, values[number]) for number in range(len(self._run.classes.entries)) if number in values]

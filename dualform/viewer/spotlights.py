"""The training slots behind an answer, per layer: `spotlight`."""

from typing import Any

from dualform import Question, Table, Timeline, Top, Total
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
        self._absent = {} if run.classes.by else {"curves": _NO_CLASSES, "totals": _NO_CLASSES}
        if merged := run.memory.merged_by:
            reason = f"this run holds sums over all visits to the same {merged}"
            self._absent = {"curves": reason, "totals": reason, "timeline": f"{reason}: no training time"}

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
        tables = dict(zip(questions, layer.collect(*questions.values()), strict=True))
        curves, totals = self._by_class(tables.get("curves"), "score"), self._by_class(tables.get("totals"), "total")
        return {
            "layer": request.layer,
            "note": note,
            "python": "\n".join([*resolved.python, "", *code.spotlight(request.layer, rows > 1, questions)]),
            "absent": self._absent,
            # scores to as many digits as a curve shows: half the bytes
            "curves": [{"class": k, "scores": [float(f"{score:.5g}") for score in scores]} for k, scores in curves],
            "totals": [{"class": k, "total": sums[0]} for k, sums in totals],
            "timeline": tables["timeline"].without("query").to_dict() if "timeline" in tables else None,
            "top": [self._slot(row) for row in tables["top"].rows()],
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

    def _by_class(self, table: Table | None, column: str) -> list[tuple[int, list[float]]]:
        """Return the numbers of a column by class, as the page lists classes; none where there is no table."""
        values: dict[int | None, list[float]] = {}
        for row in () if table is None else table.rows():
            values.setdefault(self._run.classes.of_row(row), []).append(row[column])
        return [(number, values[number]) for number in range(len(self._run.classes.entries)) if number in values]

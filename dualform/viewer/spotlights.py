"""The training slots behind an answer, per layer: `spotlight`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dualform import LayerSpotlight, Question, Table, Timeline, Top, Total
from dualform.companions import in_precision_of
from dualform.errors import Refused, UnknownName
from dualform.viewer import code
from dualform.viewer.classes import LABEL, TASK
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.requests import SpotlightRequest
from dualform.viewer.subject import subject_of

_BINS = 60
_WARMING = 4  # queries after which a layer keeps what makes further ones quick
_FACTS = ("query", "score", "slot", "step", "visits", "coefficient")  # columns that are no tags
NO_CLASSES = "slots have no classes: record with recorder.tag(label=...), at most 200 different ones"


class Spotlights:
    """Answers about attention weights."""

    def __init__(self, exhibit: Exhibit) -> None:
        self._exhibit, self._memory = exhibit, exhibit.memory
        self.per = [tag for tag in self._memory.tags if tag not in (TASK, LABEL)]

    def spotlight(self, request: SpotlightRequest) -> dict[str, Any]:
        subject = subject_of(self._exhibit, request.input)
        if subject.token is not None:
            raise Refused("the spotlight of a prompt is in passages: ask `passages`")
        questions = self._questions(request.per, request.top, request.curve)
        layer, note = self._layer(request.layer, subject.row)
        rows, layer = len(layer.queries), self._one_query(layer)
        answers = dict(zip(questions, layer.collect(*questions.values()), strict=True))
        lines = code.spotlight(request.layer, rows > 1, questions)
        if rows > 1:
            note = f"summed over the {rows} rows this layer has for the input. {note or ''}".strip()
        found = {"layer": request.layer, "note": note, "python": "\n".join([*subject.python, "", *lines])}
        return found | {"absent": self._absent(), "curves": [], "totals": [], "timeline": None} | self._shown(answers)

    def warm(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Ask what the page will ask until further answers are quick."""
        network, inputs = self._exhibit.network, self._exhibit.inputs
        if "spotlight" in self._exhibit.cannot or network is None or inputs is None:
            return
        rows = in_precision_of(network, inputs.inputs[:_WARMING])
        questions = self._questions(self.per[0] if self.per else None, SpotlightRequest.top, SpotlightRequest.curve)
        spotlight = self._memory.attend(network, rows)
        for number, name in enumerate(spotlight):
            progress(number / len(spotlight))
            spotlight[name].collect(*questions.values())

    def _questions(self, per: str | None, top: int, curve: int) -> dict[str, Question]:
        if per is not None and per not in self.per:
            raise UnknownName("tag to sum visits over called", per, self.per)
        merged, by = self._memory.merged_by, self._exhibit.classes.by
        questions: dict[str, Question] = {"top": Top(top, per=merged or per)}
        if by and not merged:
            questions |= {"curves": Top(curve, by=by), "totals": Total(by=by)}
        if not merged:
            questions["timeline"] = Timeline(min(_BINS, max(1, self._memory.steps)))
        return questions

    def _absent(self) -> dict[str, str]:
        merged = self._memory.merged_by
        if merged:
            reason = f"this run holds sums over all visits to the same {merged}"
            return {"curves": reason, "totals": reason, "timeline": f"{reason}: no training time"}
        return {} if self._exhibit.classes.by else {"curves": NO_CLASSES, "totals": NO_CLASSES}

    def _layer(self, name: str, row: Tensor) -> tuple[LayerSpotlight, str | None]:
        assert self._exhibit.network is not None
        spotlight = self._memory.attend(self._exhibit.network, row)
        return spotlight[name], spotlight.note

    def _one_query(self, layer: LayerSpotlight) -> LayerSpotlight:
        """Attention is linear: the weights of several queries add up to that of their sum."""
        if len(layer.queries) == 1:
            return layer
        return self._memory.attend({layer.name: layer.queries.sum(dim=0, keepdim=True)})[layer.name]

    def _shown(self, answers: dict[str, Table]) -> dict[str, Any]:
        shown: dict[str, Any] = {"top": [self._slot(row) for row in answers["top"].rows()]}
        if "curves" in answers:
            shown["curves"] = self._curves(answers["curves"])
            shown["totals"] = self._totals(answers["totals"])
        if "timeline" in answers:
            shown["timeline"] = answers["timeline"].without("query").to_dict()
        return shown

    def _slot(self, row: dict[str, Any]) -> dict[str, Any]:
        pictures = self._exhibit.pictures
        return {
            "score": row["score"],
            "slot": row.get("slot"),
            "step": row.get("step"),
            "visits": row.get("visits"),
            "coefficient": row.get("coefficient"),
            "class": self._exhibit.classes.of_row(row) if self._exhibit.classes.by else None,
            "pixels": None if pictures is None else pictures.training(row.get("id")),
            "tags": {name: value for name, value in row.items() if name not in _FACTS},
        }

    def _totals(self, table: Table) -> list[dict[str, Any]]:
        found = {self._exhibit.classes.of_row(row): row["total"] for row in table.rows()}
        return [{"class": number, "total": found[number]} for number in self._numbers if number in found]

    def _curves(self, table: Table) -> list[dict[str, Any]]:
        found: dict[int | None, list[float]] = {}
        for row in table.rows():
            found.setdefault(self._exhibit.classes.of_row(row), []).append(_rounded(row["score"]))
        return [{"class": number, "scores": found[number]} for number in self._numbers if number in found]

    @property
    def _numbers(self) -> range:
        """Classes as the page lists them."""
        return range(len(self._exhibit.classes.every))


def _rounded(score: float) -> float:
    """To as many digits as a curve shows: half the bytes."""
    return float(f"{score:.5g}")

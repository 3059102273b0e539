"""The schema of requests: one way to write each of them, and docs that say what it declares."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dualform.errors import Refused, UnknownName
from dualform.viewer.page_files import read_page
from dualform.viewer.requests import MAX_MUTE_SETS, MAX_MUTE_VALUES, REQUESTS, parse_request, schema

DOCS = (Path(__file__).parents[2] / "docs" / "internals" / "viewer.md").read_text(encoding="utf-8")

BODIES: dict[str, dict[str, Any]] = {
    "run": {},
    "jobs": {},
    "inputs": {"class": 3, "outcome": "wrong"},
    "predict": {"input": {"drawn": "AQID"}, "step": 7},
    "history": {"input": {"index": 3}},
    "spotlight": {"input": {"index": 3}, "layer": "2", "per": "id"},
    "mute": {"input": {"index": 3}, "mute": [{"day": ["ü"], "label": [3]}, {"steps": [1, 2], "positions": [0, 9]}]},
    "train": {"mute": [{"label": [3]}], "stop": True},
    "retrained": {"input": {"index": 3}, "mute": [{"label": [3]}]},
    "passages": {"input": {"prompt": "a\nb"}, "layer": "lstm.l0", "summed": False},
    "suspects": {"count": 5, "start": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_key_is_the_request_with_every_entry(name: str) -> None:
    request = parse_request(name, BODIES[name])
    written, _, body = request.key.partition(" ")
    assert written == name
    assert parse_request(name, json.loads(body)) == request
    assert parse_request(name, json.loads(body)).key == request.key
    assert json.loads(body).keys() >= {**request.defaults(), **BODIES[name]}.keys()
    for entry, value in BODIES[name].items():
        assert json.loads(body)[entry] == (value | {"token": None} if "prompt" in str(value) else value)


def test_a_key_does_not_depend_on_the_order_of_entries() -> None:
    one = parse_request("mute", {"mute": [{"task": ["a"], "label": [3]}], "input": {"index": 3}})
    other = parse_request("mute", {"input": {"index": 3}, "mute": [{"label": [3], "task": ["a"]}]})
    assert one.key == other.key == 'mute {"input":{"index":3},"mute":[{"label":[3],"task":["a"]}]}'


def test_unknown_requests_and_bodies_that_are_none_are_refused() -> None:
    with pytest.raises(UnknownName, match="no request 'other'"):
        parse_request("other", {})
    with pytest.raises(Refused, match="the request 'run' is not an object"):
        parse_request("run", [])


def test_the_page_holds_the_schema() -> None:
    html = read_page().index.content.decode()
    (content,) = re.findall(r'<script type="application/json" id="requests">(.*?)</script>', html)
    assert json.loads(content) == schema()


def test_the_docs_say_what_is_declared() -> None:
    headings = dict(re.findall(r"^### `(\w+)` (\{.*\})$", DOCS, flags=re.MULTILINE))
    assert list(headings) == list(REQUESTS)
    for name, request in REQUESTS.items():
        documented = json.loads(headings[name].replace("...", '"needed"'))
        assert {entry: value for entry, value in documented.items() if value != "needed"} == request.defaults()
        with pytest.raises(Refused) if "needed" in documented.values() else nullcontext():
            request.parse({})
    assert f"At most {MAX_MUTE_SETS} sets, and {MAX_MUTE_VALUES:,} values in all" in DOCS

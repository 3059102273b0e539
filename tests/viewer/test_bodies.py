"""Api with something wrong in them, sent to a real server: each gets a 4xx that says what."""

from collections.abc import Iterator
from typing import Any

import pytest

from dualform.viewer.api import Api
from dualform.viewer.opened_run import open_run
from tests.viewer import runs
from tests.viewer.served import post, served

pytestmark = pytest.mark.slow

INPUT = {"index": 3}
SPOTLIGHT = {"input": INPUT, "layer": "2"}

WRONG: dict[str, tuple[str, Any, str]] = {
    "no input": ("predict", {}, "'input' of the request 'predict' is missing"),
    "an input that is none": ("predict", {"input": 3}, "is not an object"),
    "an empty input": ("predict", {"input": {}}, "an input is"),
    "two inputs in one": ("predict", {"input": {"index": 3, "drawn": "AAAA"}}, "an input is"),
    "a token without a prompt": ("predict", {"input": {"index": 3, "token": 1}}, "an input is"),
    "an index that is a text": ("predict", {"input": {"index": "3"}}, "whole number"),
    "an index that is true": ("predict", {"input": {"index": True}}, "whole number"),
    "an index that is broken": ("predict", {"input": {"index": 1.5}}, "whole number"),
    "a negative index": ("predict", {"input": {"index": -1}}, "whole number"),
    "an index beyond the last": ("predict", {"input": {"index": 12}}, "no input 12; choose from 0 to 11"),
    "an index beyond any": ("predict", {"input": {"index": 10**30}}, "whole number"),
    "an unknown entry": ("predict", {"input": INPUT, "colour": "red"}, "'colour' of the request"),
    "an entry for nothing": ("run", {"run": "other"}, "'run' of the request 'run' is not known"),
    "a step beyond the last": ("predict", {"input": INPUT, "step": 25}, "the run has 24 steps"),
    "a step that is a text": ("predict", {"input": INPUT, "step": "7"}, "whole number"),
    "a negative step": ("predict", {"input": INPUT, "step": -1}, "whole number"),
    "no layer": ("spotlight", {"input": INPUT}, "'layer' of the request 'spotlight' is missing"),
    "an unknown layer": ("spotlight", {"input": INPUT, "layer": "9"}, "no layer '9'; choose from '0', '2'"),
    "an unknown tag": ("spotlight", {**SPOTLIGHT, "per": "colour"}, "choose from 'id'"),
    "none of the top": ("spotlight", {**SPOTLIGHT, "top": 0}, "at least 1"),
    "too many of the top": ("spotlight", {**SPOTLIGHT, "top": 10**9}, "at most 200"),
    "too long a curve": ("spotlight", {**SPOTLIGHT, "curve": 10**9}, "at most 2,000"),
    "an unknown outcome": ("inputs", {"outcome": "odd"}, "'right', 'wrong' or null"),
    "an unknown class": ("inputs", {"class": 6}, "there is no class 6; there are 6"),
    "too many inputs": ("inputs", {"count": 10**6}, "at most 500"),
    "a start before the first": ("inputs", {"start": -3}, "at least 0"),
    "a search that is a number": ("inputs", {"search": 3}, "is not a text"),
    "a search that moves the cursor": ("inputs", {"search": "\x1b[2J"}, "cannot be shown"),
    "nothing to mute": ("mute", {"input": INPUT}, "'mute' of the request 'mute' is missing"),
    "a set that is none": ("mute", {"input": INPUT, "mute": ["label"]}, "a list of sets"),
    "an empty set": ("mute", {"input": INPUT, "mute": [{}]}, "a list of sets"),
    "a set of one value": ("mute", {"input": INPUT, "mute": [{"label": 3}]}, "a list of values"),
    "a set of no values": ("mute", {"input": INPUT, "mute": [{"label": []}]}, "at least one"),
    "a set of objects": ("mute", {"input": INPUT, "mute": [{"label": [{}]}]}, "a list of values"),
    "too many sets": ("mute", {"input": INPUT, "mute": [{"label": [1]}] * 65}, "at most 64 sets"),
    "too many values": ("mute", {"input": INPUT, "mute": [{"id": list(range(10_001))}]}, "at most 10,000 values"),
    "an unknown label": ("mute", {"input": INPUT, "mute": [{"label": [9]}]}, "no value of tag 'label': 9"),
    "an unknown id": ("mute", {"input": INPUT, "mute": [{"id": [12345]}]}, "no value of tag 'id': 12345"),
    "an unknown tag to mute": ("mute", {"input": INPUT, "mute": [{"colour": [1]}]}, "no tag 'colour'"),
    "a range of one end": ("mute", {"input": INPUT, "mute": [{"steps": [3]}]}, "[first, end]"),
    "an empty range": ("mute", {"input": INPUT, "mute": [{"steps": [9, 9]}]}, "is empty"),
    "a range the wrong way round": ("mute", {"input": INPUT, "mute": [{"steps": [9, 3]}]}, "is empty"),
    "a range of texts": ("mute", {"input": INPUT, "mute": [{"steps": ["a", "b"]}]}, "whole number"),
    "positions where there are none": ("mute", {"input": INPUT, "mute": [{"positions": [0, 9]}]}, "no tag 'position'"),
    "a drawing that is none": ("predict", {"input": {"drawn": "%%%"}}, "base64url"),
    "an empty drawing": ("predict", {"input": {"drawn": ""}}, "the drawing is empty"),
    "a drawing of lifted pens": ("predict", {"input": {"drawn": "_____w"}}, "the drawing is empty"),
    "a drawing that ends in a point": ("predict", {"input": {"drawn": "AAAA"}}, "two bytes a point"),
    "an endless drawing": ("predict", {"input": {"drawn": "A" * 19_000}}, "at most 2,000 points"),
    "a drawing that is a number": ("predict", {"input": {"drawn": 3}}, "a text"),
    "a prompt to a classifier": ("predict", {"input": {"prompt": "the wolf"}}, "for runs of language models"),
    "passages of a picture": ("passages", {"input": INPUT, "layer": "2"}, "with a prompt"),
    "none of the suspects": ("suspects", {"count": 0}, "at least 1"),
    "too many suspects": ("suspects", {"count": 501}, "at most 500"),
    "suspects before the first": ("suspects", {"start": -1}, "at least 0"),
    "suspects that are a text": ("suspects", {"count": "all"}, "whole number"),
    "suspects of a class": ("suspects", {"class": 3}, "'class' of the request 'suspects' is not known"),
    "a sum that is a number": ("passages", {"input": INPUT, "layer": "2", "summed": 1}, "true or false"),
}  # fmt: skip

PROMPTS: dict[str, tuple[str, Any, str]] = {
    "an empty prompt": ("predict", {"input": {"prompt": ""}}, "the prompt is empty"),
    "an endless prompt": ("predict", {"input": {"prompt": "a" * 20_001}}, "at most 20,000 characters"),
    "strange characters": ("predict", {"input": {"prompt": "the wolf €"}}, "no character '€'"),
    "a token beyond the last": ("predict", {"input": {"prompt": "wolf", "token": 4}}, "there is no token 4"),
    "an index of a text": ("predict", {"input": INPUT}, "is of a language model"),
    "a spotlight of a prompt": ("spotlight", {"input": {"prompt": "wolf"}, "layer": "lstm.l0"}, "ask `passages`"),
    "too many passages": ("passages", {"input": {"prompt": "wolf"}, "layer": "lstm.l0", "most": 999}, "at most 20"),
    "suspects of a text": ("suspects", {}, "suspects are for classifiers"),
    "an unknown layer": ("passages", {"input": {"prompt": "wolf"}, "layer": "2"}, "no layer '2'"),
    "positions outside": (
        "mute",
        {"input": {"prompt": "wolf"}, "mute": [{"positions": [999, 2**52]}]},
        "was trained on",
    ),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = runs.pictures(tmp_path_factory.mktemp("run") / "pictures")
    api = Api(open_run(path, runs.PICTURES), prepare=False)
    api.jobs.run()
    with served(api) as port:
        yield port


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = runs.language(tmp_path_factory.mktemp("run") / "language")
    with served(Api(open_run(path), prepare=False)) as port:
        yield port


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(pictures: int, case: str) -> None:
    refused(pictures, *WRONG[case])


@pytest.mark.parametrize("case", PROMPTS)
def test_what_is_wrong_with_a_prompt_is_said(language: int, case: str) -> None:
    refused(language, *PROMPTS[case])


def refused(port: int, name: str, body: Any, reason: str) -> None:
    found = post(port, name, body)
    assert found.status == 422
    assert reason in found.json()["error"]
    assert found.json().get("job") is None
    assert post(port, "run", {}).status == 200  # and it goes on

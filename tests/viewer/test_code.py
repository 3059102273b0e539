"""The Python that a panel shows is what it says, whatever tags, layers and values are called."""

import ast
from typing import Any

import pytest

from dualform import Top
from dualform.viewer import code
from dualform.viewer.requests import MuteSet

HOSTILE = [
    "x=1).model(__import__('os').system('id')) #",
    "my tag",
    "class",
    "a'b\"c",
    "x\ny",
    "**{}",
    "\\",
    "ℌ",
    "1st",
    "",
]
PLAIN = ["label", "task_2"]


def calls(lines: list[str]) -> list[str]:
    """The names of all that is called."""
    nodes = ast.walk(ast.parse("\n".join(lines)))
    return [ast.unparse(node.func).rsplit(".", 1)[-1] for node in nodes if isinstance(node, ast.Call)]


class Muted:
    """Takes the place of the memory, and keeps what it is called with."""

    def __init__(self) -> None:
        self.tags: list[dict[str, Any]] = []

    def without(self, **tags: Any) -> "Muted":
        self.tags.append(tags)
        return self

    def model(self, model: str) -> str:
        return model


@pytest.mark.parametrize("name", [*HOSTILE, *PLAIN])
def test_names_of_tags_are_no_code(name: str) -> None:
    values = (3, "'); evil() #", 1.5, True, float("inf"))
    lines = code.muted([MuteSet(tags=((name, values), ("other", (1,)))), MuteSet(tags=((name, (2,)),))])
    assert sorted(call for call in calls(lines) if call != "float") == ["model", "without", "without"]
    memory = Muted()
    exec("\n".join(lines), {"memory": memory, "model": "model"})
    assert memory.tags == [{name: list(values), "other": [1]}, {name: [2]}]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_layers_are_no_code(name: str) -> None:
    lines = code.spotlight(name, True, {"top": Top(3, by=(name, "label"), per=name)})
    assert sorted(calls(lines)) == ["Top", "attend", "attend", "collect", "sum"]

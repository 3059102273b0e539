"""The rooms: imports point downwards, the public names are these, `--help` needs no torch."""

import ast
import re
from pathlib import Path

import pytest

import dualform

PACKAGE = Path(dualform.__file__).parent

# A room may import from the rooms below it, and from itself: docs/internals/architecture.md has their order.
PAGE = (PACKAGE.parent / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
(LISTED,) = re.findall(r"```rooms\n(.*?)```", PAGE, flags=re.DOTALL)
ROOMS = [re.split(r",\s*", re.split(r"\s{2,}", line)[0]) for line in LISTED.splitlines()]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(module: str) -> str:
    return module.removeprefix("dualform.").split(".")[0]


def imports(path: Path) -> set[str]:
    """The rooms a file imports from; a string that names a module counts."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dualform"):
            names = [f"dualform.{alias.name}" for alias in node.names] if node.module == "dualform" else [node.module]
            found |= {room_of(name) for name in names}
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("dualform.")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {room for room in re.findall(r"\bdualform\.(\w+)", node.value) if room in LEVEL}
    return found


def home_of(name: str) -> str:
    """The room of what is imported: a public class or function is in the room that defines it."""
    public = name in dualform.__all__ and name not in (*LEVEL, "__version__")
    return room_of(getattr(dualform, name).__module__) if public else name


def test_every_room_is_on_the_page() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == {room for rooms in ROOMS for room in rooms}


def test_imports_point_downwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        room = room_of(".".join(("dualform", *path.relative_to(PACKAGE).with_suffix("").parts)))
        if room == "__init__":
            continue
        targets = {home_of(name) for name in imports(path)} - {room, "__version__"}
        wrong += [f"{path.relative_to(PACKAGE)} imports {t}" for t in targets if LEVEL[t] <= LEVEL[room]]
    assert not wrong


# Rooms that need none of the rooms that a run is recorded, stored and asked in.
@pytest.mark.parametrize("room", ["viewer", "experiments"])
def test_only_the_public_interface_is_used(room: str) -> None:
    public = {*dualform.__all__, "datasets", "companions", "terminal", "strict_json", "atomic_file"}
    wrong = []
    for path in (PACKAGE / room).rglob("*.py"):
        wrong += [f"{path.relative_to(PACKAGE)} imports {one}" for one in imports(path) - {room} - public]
    assert not wrong


# Tests ask through public names, but for what nothing else can show.
PRIVATE = {
    "tests/benchmarks/test_peers.py": "processes that fail",
    "tests/benchmarks/test_suite.py": "figures as people read them",
    "tests/dual/test_group_weights.py": "in which pieces slots are read",
    "tests/dual/test_replay.py": "how often a step is replayed",
    "tests/recorder/test_recorder.py": "which memory is given back while a chapter is written",
    "tests/recorder/test_waiting.py": "how long steps wait to be audited",
    "tests/viewer/test_concurrency.py": "work in the background that goes on while requests are answered",
    "tests/viewer/test_muting.py": "which thread a request is answered in",
}
OTHERS = {"_C", "_dynamo", "_exit", "_replace", "_version", "_repr_html_"}  # torch's, Python's, notebooks'


def test_tests_ask_through_public_names() -> None:
    private = set()
    root = PACKAGE.parent
    for path in (root / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or not re.fullmatch(r"_[a-zA-Z].*", node.attr):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in OTHERS and not node.attr.endswith("_hooks"):
                private.add(path.relative_to(root).as_posix())
    assert private == set(PRIVATE)


def test_the_public_names() -> None:
    assert sorted(dualform.__all__) == [
        "Certificate",
        "Coverage",
        "DualformError",
        "GroupWeights",
        "LayerSpotlight",
        "Memory",
        "Output",
        "Question",
        "Recipe",
        "Recorder",
        "Spotlight",
        "Table",
        "Timeline",
        "Top",
        "Total",
        "__version__",
        "algebra",
        "duality",
        "errors",
        "huggingface",
        "inputs",
        "kinds",
        "lightning",
        "load",
        "nn",
        "plots",
        "record",
        "text",
        "unfuse",
    ]
    for name in dualform.__all__:
        assert getattr(dualform, name) is not None
    assert dir(dualform) == sorted(dualform.__all__)

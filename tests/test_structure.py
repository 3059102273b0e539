"""The rooms: imports point downwards, the public names are these, `--help` needs no torch."""

import ast
from pathlib import Path

import dualform

PACKAGE = Path(dualform.__file__).parent

# A room may import from the rooms below it, and from itself.
ROOMS = [
    ["__main__"],
    ["cli"],
    ["viewer"],
    ["experiments"],
    ["datasets", "plots", "terminal"],
    ["companions", "text"],
    ["memory"],
    ["attention"],
    ["dual"],
    ["engine"],
    ["slots"],
    ["recorder"],
    ["kinds"],
    ["jsonable", "table"],
    ["store"],
    ["algebra", "duality", "nn"],
    ["errors"],
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(module: str) -> str:
    return module.removeprefix("dualform.").split(".")[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dualform"):
            names = [f"dualform.{alias.name}" for alias in node.names] if node.module == "dualform" else [node.module]
            found |= {room_of(name) for name in names}
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("dualform.")}
    return found


def test_imports_point_downwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        room = room_of(".".join(("dualform", *path.relative_to(PACKAGE).with_suffix("").parts)))
        if room == "__init__":
            continue
        targets = imports(path) - {room, "__version__"}
        wrong += [f"{path.relative_to(PACKAGE)} imports {t}" for t in targets if LEVEL[t] <= LEVEL[room]]
    assert not wrong


def test_the_public_names() -> None:
    assert sorted(dualform.__all__) == [
        "Certificate",
        "DualformError",
        "Memory",
        "Output",
        "Recorder",
        "Spotlight",
        "Timeline",
        "Top",
        "Total",
        "__version__",
        "duality",
        "load",
        "nn",
        "record",
        "text",
        "unfuse",
    ]
    for name in dualform.__all__:
        assert getattr(dualform, name) is not None
    assert dir(dualform) == sorted(dualform.__all__)

"""The page's modules: whatever they import is there, and folders import from themselves and those below only."""

import re
from pathlib import Path

import pytest

from dualform.viewer.page_files import read_page

FOLDERS = ["core", "charts", "panels", "pages"]  # from the lowest
MODULES = {name.removesuffix(".js"): file.content.decode() for name, file in read_page().files.items() if ".js" in name}
IMPORT = re.compile(r'^import (?:\{(?P<names>[^}]*)\}|\* as \w+) from "viewer/(?P<module>[\w/]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_there_and_point_downwards(module: str) -> None:
    level = [*FOLDERS, "main"].index(Path(module).parts[0])
    imports = list(IMPORT.finditer(MODULES[module]))
    assert len(imports) == len(re.findall("^import ", MODULES[module], flags=re.MULTILINE))
    for found in imports:
        assert FOLDERS.index(Path(found["module"]).parts[0]) <= level, found["module"]
        names = [name.split(" as ")[0].strip() for name in (found["names"] or "").split(",") if name.strip()]
        assert set(names) <= set(EXPORT.findall(MODULES[found["module"]])), found["module"]
        for name in (name.split(" as ")[-1].strip() for name in (found["names"] or "").split(",")):
            assert len(re.findall(rf"\b{name}\b", MODULES[module])) > 1, f"{name} is not used"

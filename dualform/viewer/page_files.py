"""The files of the page: read once, known by name, with what a browser has to be told of each.

    page = read_page()
    page.files["main.js"].etag
    page.script_hash                # of the import map, the only code that stands in the page itself

The page also holds the defaults and limits of requests, as data. A request for a file is looked up among the names
found at the start; no path is ever made of it.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualform.viewer.requests import schema

_DIRECTORY = Path(__file__).parent / "page"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class File:
    """What is sent, as what, and by what a browser tells that it has it already."""

    content: bytes
    type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, kind: str) -> "File":
        # Weak, for the same name stands for the same bytes gzipped.
        return cls(content, f"{kind}; charset=utf-8", f'W/"{hashlib.sha256(content).hexdigest()[:32]}"')


@dataclass(frozen=True)
class Page:
    """The page itself, and the files it asks for."""

    index: File
    files: dict[str, File]
    script_hash: str  # of the import map, as a content security policy writes it


def read_page(directory: Path = _DIRECTORY) -> Page:
    found = sorted(one for one in directory.iterdir() if one.suffix in _TYPES and _NAME.fullmatch(one.stem))
    files = {one.name: File.of(one.read_bytes(), _TYPES[one.suffix]) for one in found}
    html = (directory / "index.html").read_text(encoding="utf-8")
    html = html.replace("__IMPORT_MAP__", import_map([one.stem for one in found if one.suffix == ".js"]))
    html = html.replace("__REQUESTS__", json_in_html(schema()))
    return Page(File.of(html.encode(), "text/html"), files, _script_hash(html))


def import_map(modules: list[str]) -> str:
    """Where a browser finds `viewer/NAME`."""
    return json.dumps({"imports": {f"viewer/{name}": f"/page/{name}.js" for name in modules}})


def json_in_html(content: Any) -> str:
    """Write JSON that cannot end the element it stands in, whatever words are in it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _script_hash(html: str) -> str:
    """Of the text between the tags, to the last space: that is what a browser hashes."""
    script = _MAP.search(html)
    if script is None:
        raise ValueError('index.html has no <script type="importmap">')
    return f"sha256-{base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()}"

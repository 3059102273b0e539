"""The files of the page: read once, known by name, with what a browser has to be told of each.

    page = read_page()
    page.files["core/state.js"].etag
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
_NAME = re.compile(r"([A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.[a-z]+")
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class File:
    """What is sent, its type, and the tag by which a browser knows that it has it already."""

    content: bytes
    type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "File":
        # Weak, for the same name stands for the same bytes gzipped.
        return cls(content, f"{media_type}; charset=utf-8", f'W/"{hashlib.sha256(content).hexdigest()[:32]}"')


@dataclass(frozen=True)
class Page:
    """The page itself, and the files it asks for."""

    index: File
    files: dict[str, File]
    script_hash: str  # of the import map, as a content security policy writes it


def read_page(directory: Path = _DIRECTORY) -> Page:
    """Read the files of a directory and of its folders."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.suffix in _TYPES and _NAME.fullmatch(name):
            files[name] = File.of(path.read_bytes(), _TYPES[path.suffix])
    html = (directory / "index.html").read_text(encoding="utf-8")
    modules = {f"viewer/{name.removesuffix('.js')}": f"/page/{name}" for name in files if name.endswith(".js")}
    html = html.replace("__IMPORT_MAP__", json_in_html({"imports": modules}))
    html = html.replace("__REQUESTS__", json_in_html(schema()))
    script = _IMPORT_MAP.search(html)
    if script is None:
        raise ValueError('index.html has no <script type="importmap">')
    digest = hashlib.sha256(script[1].encode()).digest()  # a browser hashes what is between the tags, to the last space
    script_hash = f"sha256-{base64.b64encode(digest).decode()}"
    return Page(File.of(html.encode(), "text/html"), files, script_hash)


def json_in_html(content: Any) -> str:
    """Write JSON that cannot end the element it stands in, whatever words are in it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")

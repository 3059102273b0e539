"""A report: the page of the viewer and answers to some requests in one HTML file, which opens from disk.

    api.jobs.run()
    answers = collect(api, ReportInputs(indices=[3, 8]))
    write(Path("run.html"), html(answers))

The page is the same; it looks its answers up by the keys of requests instead of asking a server. Nothing in the file is
fetched from anywhere: its content security policy forbids it.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualform.atomic_file import write_atomically
from dualform.strict_json import finite
from dualform.viewer.api import Api
from dualform.viewer.listing import describe_input
from dualform.viewer.opened_run import OpenedRun
from dualform.viewer.page_files import Page, json_in_html, read_page
from dualform.viewer.requests import (
    HistoryRequest,
    IndexedInput,
    InputsRequest,
    JobsRequest,
    MuteRequest,
    MuteSet,
    PassagesRequest,
    PredictRequest,
    PromptInput,
    Request,
    RunRequest,
    SpotlightRequest,
)

Answer = dict[str, Any]
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_WRONG_INPUTS, _RIGHT_INPUTS = 4, 4  # where none are chosen


@dataclass(frozen=True)
class ReportInputs:
    """What a report is about: test inputs by index, or prompts."""

    indices: Sequence[int] = ()
    prompts: Sequence[str] = ()


def default_inputs(run: OpenedRun) -> ReportInputs:
    """Choose some mistakes and some that the model gets right, of many tasks and classes."""
    outputs = run.outputs
    if run.inputs is None or outputs is None or outputs.right is None or outputs.labels is None:
        return ReportInputs(indices=range(min(_WRONG_INPUTS + _RIGHT_INPUTS, len(run.inputs or ()))))
    labels, right = outputs.labels.tolist(), outputs.right.numpy()
    kinds = [(run.task_of(index), label) for index, label in enumerate(labels)]
    return ReportInputs(indices=[*_varied(kinds, ~right)[:_WRONG_INPUTS], *_varied(kinds, right)[:_RIGHT_INPUTS]])


def _varied(kinds: Sequence[tuple[str | None, int]], among: NDArray[np.bool_]) -> list[int]:
    """Order inputs by their task and label: the first of each label, the tasks in turn, then the second of each."""
    order = list[tuple[int, int, int]]()
    visits, turns = Counter[tuple[str | None, int]](), Counter[tuple[str | None, int]]()
    for index in np.flatnonzero(among).tolist():
        visit, task = visits[kinds[index]], kinds[index][0]
        order.append((visit, turns[task, visit], index))
        visits[kinds[index]] += 1
        turns[task, visit] += 1
    return [index for *_, index in sorted(order)]


def collect(api: Api, chosen: ReportInputs, progress: Callable[[int], None] = lambda number: None) -> dict[str, Answer]:
    """Return the answers by the keys of their requests.

    Args:
        api: Answers the requests; its jobs have to be done.
        chosen: What the report is about.
        progress: Is called with the number of each of `requests_about` once it is answered.
    """
    listed = {"total": len(chosen.indices), "inputs": [describe_input(api.run, index) for index in chosen.indices]}
    answers = {request.key: api.answer(request) for request in (RunRequest(), JobsRequest())}
    answers[InputsRequest().key] = listed
    for number, request in enumerate(requests_about(api, chosen)):
        answers[request.key] = api.answer(request)
        progress(number)
    return answers


def requests_about(api: Api, chosen: ReportInputs) -> Iterator[Request]:
    """Yield what the page may ask about the chosen, as far as the answers are computed quickly."""
    run = api.answer(RunRequest())
    layers, cannot = [layer["name"] for layer in run["layers"]], run["cannot"]
    several = len(run["tasks"]) > 1
    muted = [{"task": [task["name"]]} for task in run["tasks"]] if several else []
    names = ("task", "label") if several else ("label",)
    muted += [{name: [entry[name]] for name in names} for entry in run["classes"]]
    for indexed in map(IndexedInput, chosen.indices):
        if "spotlight" not in cannot:
            for per in dict.fromkeys([*run["per"][:1], None]):
                yield from (SpotlightRequest(indexed, layer, per) for layer in layers)
        if "predict" not in cannot:
            yield HistoryRequest(indexed)
            yield from (PredictRequest(indexed, step) for step in (None, *api.stops))
        if "mute" not in cannot:
            yield from (MuteRequest(indexed, (MuteSet.parse(tags),)) for tags in muted)
    for prompt in map(PromptInput, chosen.prompts):
        yield PredictRequest(prompt)
        if "spotlight" not in cannot:
            for layer in layers:
                for summed in (True,) if "time" in cannot else (True, False):
                    yield PassagesRequest(prompt, layer, summed)


def html(answers: dict[str, Answer], page: Page | None = None) -> str:
    """Return the page with everything inside it."""
    page = page or read_page()
    text = page.index.content.decode()
    styles = "\n".join(page.files[name].content.decode() for name in re.findall(r'href="/page/([\w/]+\.css)"', text))
    imports = {
        f"viewer/{name.removesuffix('.js')}": f"data:text/javascript;base64,{base64.b64encode(file.content).decode()}"
        for name, file in page.files.items()
        if name.endswith(".js")
    }
    text = re.sub(r'<link rel="stylesheet" href="/page/[\w/]+\.css">\n?', "", text)
    text = re.sub(r'<script type="importmap">.*?</script>\n?', "", text, flags=re.DOTALL)
    text = re.sub(r'<script type="module" src="/page/main\.js"></script>\n?', "", text)
    head = "\n".join([
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<style>\n{styles}\n</style>",
        f'<script type="importmap">{json_in_html({"imports": imports})}</script>',
        f'<script type="application/json" id="answers">{json_in_html(finite(answers))}</script>',
        '<script type="module">import "viewer/main";</script>',
        "</head>",
    ])  # fmt: skip
    return text.replace("</head>", head, 1)


def write(path: Path, content: str) -> None:
    """Write a report, whole or not at all."""
    write_atomically(path, [np.frombuffer(content.encode(), np.uint8)])

"""A report: the page of the viewer and answers to some questions in one HTML file, which opens from disk.

    questions.jobs.run()
    answers = collect(questions, Chosen(inputs=[3, 8]))
    write(Path("run.html"), html(answers))

The page is the same; it finds its answers by question instead of asking for them. Nothing in the file is fetched from
anywhere: its content security policy forbids it.
"""

import base64
import json
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
from dualform.viewer.exhibit import Exhibit
from dualform.viewer.listing import shown
from dualform.viewer.page_files import Page, read_page
from dualform.viewer.questions import Questions
from dualform.viewer.subject import task_of

Answer = dict[str, Any]
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_TOP, _CURVE, _PASSAGES = 12, 500, 5  # as the page asks
_WRONG, _RIGHT = 4, 4  # inputs, where none are chosen


@dataclass(frozen=True)
class Chosen:
    """What a report is about: test inputs, or prompts."""

    inputs: Sequence[int] = ()
    prompts: Sequence[str] = ()


def chosen_for(exhibit: Exhibit) -> Chosen:
    """Where nothing is chosen: some mistakes and some that the model gets right, of many tasks and classes."""
    outputs = exhibit.outputs
    if exhibit.inputs is None or outputs is None or outputs.right is None or outputs.labels is None:
        return Chosen(inputs=range(min(_WRONG + _RIGHT, len(exhibit.inputs or ()))))
    labels, right = outputs.labels.tolist(), outputs.right.numpy()
    kinds = [(task_of(exhibit, index), label) for index, label in enumerate(labels)]
    return Chosen(inputs=[*_varied(kinds, ~right)[:_WRONG], *_varied(kinds, right)[:_RIGHT]])


def _varied(kinds: Sequence[tuple[str | None, int]], among: NDArray[np.bool_]) -> list[int]:
    """Some inputs by their task and label: the first of each label, the tasks in turn, then the second of each."""
    order = list[tuple[int, int, int]]()
    visits, turns = Counter[tuple[str | None, int]](), Counter[tuple[str | None, int]]()
    for index in np.flatnonzero(among).tolist():
        visit, task = visits[kinds[index]], kinds[index][0]
        order.append((visit, turns[task, visit], index))
        visits[kinds[index]] += 1
        turns[task, visit] += 1
    return [index for *_, index in sorted(order)]


def collect(
    questions: Questions, chosen: Chosen, progress: Callable[[int], None] = lambda step: None
) -> dict[str, Answer]:
    """The answers by question, as the page looks them up. The jobs of the questions have to be done."""
    exhibit = questions.exhibit
    listed = {"total": len(chosen.inputs), "inputs": [shown(exhibit, index) for index in chosen.inputs]}
    usual = {"start": 0, "count": 60, "class": None, "outcome": None, "search": ""}
    found = {key("run", {}): questions.ask("run", {}), key("jobs", {}): questions.ask("jobs", {})}
    found[key("inputs", usual)] = listed
    for number, (name, body) in enumerate(asked(questions, chosen)):
        found[key(name, body)] = questions.ask(name, body)
        progress(number)
    return found


def asked(questions: Questions, chosen: Chosen) -> Iterator[tuple[str, Answer]]:
    """What the page may ask about the chosen, with the answers that are computed quickly."""
    run = questions.ask("run", {})
    for index in chosen.inputs:
        yield from _about_input(questions, run, {"index": index})
    for prompt in chosen.prompts:
        yield from _about_prompt(run, {"prompt": prompt})


def _about_input(questions: Questions, run: Answer, of: Answer) -> Iterator[tuple[str, Answer]]:
    layers = [layer["name"] for layer in run["layers"]]
    if "spotlight" not in run["cannot"]:
        for per in dict.fromkeys([*run["per"][:1], None]):
            yield from (
                ("spotlight", {"input": of, "layer": layer, "per": per, "top": _TOP, "curve": _CURVE})
                for layer in layers
            )
    if "predict" not in run["cannot"]:
        yield "history", {"input": of}
        yield from (("predict", {"input": of, "step": step}) for step in (None, *questions.stops))
    if "mute" not in run["cannot"]:
        yield from (("mute", {"input": of, "mute": sets}) for sets in _worth_muting(run))


def _worth_muting(run: Answer) -> Iterator[list[Answer]]:
    """One class, or one task."""
    for task in run["tasks"] if len(run["tasks"]) > 1 else ():
        yield [{"task": [task["name"]]}]
    several = len(run["tasks"]) > 1
    for one in run["classes"]:
        yield [{"task": [one["task"]], "label": [one["label"]]} if several else {"label": [one["label"]]}]


def _about_prompt(run: Answer, of: Answer) -> Iterator[tuple[str, Answer]]:
    yield "predict", {"input": of, "step": None}
    if "spotlight" not in run["cannot"]:
        for layer in run["layers"]:
            for summed in (True,) if "time" in run["cannot"] else (True, False):
                yield "passages", {"input": of, "layer": layer["name"], "summed": summed, "most": _PASSAGES}


def key(name: str, body: Answer) -> str:
    """A question as the page looks it up: sorted, without spaces."""
    return f"{name} {json.dumps(body, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}"


def html(answers: dict[str, Answer], page: Page | None = None) -> str:
    """The page with everything inside it."""
    page = page or read_page()
    text = page.index.content.decode()
    styles = "\n".join(page.files[name].content.decode() for name in re.findall(r'href="/page/([\w.]+\.css)"', text))
    modules = {name: file.content for name, file in page.files.items() if name.endswith(".js")}
    imports = {f"viewer/{Path(name).stem}": _data_url(content) for name, content in modules.items()}
    text = re.sub(r'<link rel="stylesheet" href="/page/[\w.]+">\n?', "", text)
    text = re.sub(r'<script type="importmap">.*?</script>\n?', "", text, flags=re.DOTALL)
    text = re.sub(r'<script type="module" src="/page/main\.js"></script>\n?', "", text)
    head = "\n".join([
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<style>\n{styles}\n</style>",
        f'<script type="importmap">{_inside_html({"imports": imports})}</script>',
        f'<script type="application/json" id="answers">{_inside_html(finite(answers))}</script>',
        '<script type="module">import "viewer/main";</script>',
        "</head>",
    ])  # fmt: skip
    return text.replace("</head>", head, 1)


def _data_url(content: bytes) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(content).decode()}"


def _inside_html(content: Any) -> str:
    """JSON that cannot end the element it stands in, whatever words are in it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def write(path: Path, content: str) -> None:
    """Whole or not at all."""
    write_atomically(path, [np.frombuffer(content.encode(), np.uint8)])

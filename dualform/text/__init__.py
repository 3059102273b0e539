"""Slots back to passages: what stands at a language model's top training positions, for people to read.

    text = Text.load("runs/aesop/text.json")
    found = passages(text, layer.top(20, per="position"), most=3)      # a table with `position` and `score`
    for passage in found:
        print(to_plain(passage), "|", caption(passage))     # away as [f]ast as he could | THE WOLF AND ...

`Text` is a training text, position by position; a `Passage` is a stretch of it in which hits are marked.
The last token of a prompt is shown the same ways, by way of `prompt_passage`.
"""

from dualform.text.passages import Mark, Passage, passages, prompt_passage
from dualform.text.shown import caption, escape_markdown, to_html, to_markdown, to_plain, to_rich, to_snippet
from dualform.text.texts import Text

__all__ = [
    "Mark",
    "Passage",
    "Text",
    "caption",
    "escape_markdown",
    "passages",
    "prompt_passage",
    "to_html",
    "to_markdown",
    "to_plain",
    "to_rich",
    "to_snippet",
]

"""Passages: the training text around a language model's top training positions, for people to read.

    text = Text.load("runs/aesop/text.json")
    for passage in passages(text, layer.top(20, per="position"), most=3):      # a table with `position` and `score`
        print(to_plain(passage), "|", caption(passage))     # away as [f]ast as he could | THE WOLF AND ...

A `Text` is a training text as a sequence of tokens; a `Passage` is a part of it in which hits are marked.
`prompt_passage` makes a passage of a prompt, so that its last token can be shown in the same formats.
"""

from dualform.text.formats import caption, escape_markdown, to_html, to_markdown, to_plain, to_rich, to_snippet
from dualform.text.passages import Mark, Passage, passages, prompt_passage
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

"""The topics of Python's own help, as they are in this Python and as they might be in another."""

import sys
from types import ModuleType

import pytest

from dualform.datasets import topics
from dualform.errors import DataError


def use(monkeypatch: pytest.MonkeyPatch, made_up: dict[str, str]) -> None:
    module = ModuleType("pydoc_data.topics")
    module.topics = made_up  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)


def topic(title: str, body: str, underline: str = "*") -> str:
    return f"{title}\n{underline * len(title)}\n\n{body}\n"


def test_every_title_stands_where_it_is_said_to() -> None:
    corpus = topics.load()
    assert (corpus.name, corpus.words, corpus.note) == ("topics", "prose", None)
    titles = [title for part in (corpus.train, corpus.test) for _, title in part.titles]
    assert 'The "assert" statement' in titles
    assert len(titles) > 40
    for part in (corpus.train, corpus.test):
        assert [at for at, _ in part.titles] == sorted(at for at, _ in part.titles)
        for at, title in part.titles:
            assert part.text.startswith(f"{title}\n", at)


def test_the_test_text_is_about_a_tenth_and_never_in_the_training_text() -> None:
    corpus = topics.load()
    share = len(corpus.test.text) / (len(corpus.train.text) + len(corpus.test.text))
    assert 0.05 < share < 0.2
    starts = [at for at, _ in corpus.test.titles]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        body = corpus.test.text[start:end].partition("\n\n")[2].strip()
        assert body not in corpus.train.text


def test_it_is_the_same_each_time() -> None:
    assert topics.load() == topics.load()


def test_one_topic_in_ten_is_held_out_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = {f"{number:02}": topic(f"T{number:02}", f"<{number}>" * (number + 1)) for number in range(30)}
    use(monkeypatch, made_up)
    corpus = topics.load()
    assert [title for _, title in corpus.test.titles] == ["T04", "T14", "T24"]
    assert len(corpus.train.titles) == 27
    use(monkeypatch, dict(reversed(made_up.items())))
    assert topics.load() == corpus


def test_sections_of_longer_topics_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = topic("Inner", "Words.\n" + topic("Deep", "More.", "="))
    outer = topic("Outer", "Before.\n" + topic("Inner", "Words.\n" + topic("Deep", "More.", "-"), "=") + "After.")
    use(monkeypatch, {"inner": inner, "same": inner.replace("Inner", "Same"), "outer": outer})
    assert topics.load().train.titles == ((0, "Outer"),)


def test_a_python_without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="without pydoc_data.topics; .* --text FILE"):
        topics.load()

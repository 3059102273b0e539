"""Texts in numbers and back: characters, words of prose, words of WikiText, prompts."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.datasets.corpus import Corpus, Part
from dualform.datasets.tokens import (
    UNKNOWN_CHARACTER,
    UNKNOWN_WORD,
    Vocabulary,
    characters,
    encode_prompt,
    replace_unknown,
    words,
)
from dualform.errors import QueryError
from dualform.text import Text

PROSE = Corpus(
    "prose",
    train=Part("A wolf.\n\nB\n\nThe wolf’s one-eyed; the end...\n", titles=((0, "A"), (9, "B"))),
    test=Part("the wolf’s friend.\n", titles=((4, "wolf"),)),
)
WIKI = Corpus(
    "wiki",
    train=Part(" \n = A = \n \n the <unk> the , \n", titles=((2, "A"),)),
    test=Part(" \n = B = \n \n the C \n", titles=((2, "B"),)),
    words="wikitext",
)


def shown(text: Text) -> list[str]:
    return [text.vocabulary[number] for number in text.ids]


def test_characters_are_numbered_in_their_order() -> None:
    train, test = characters(Corpus("x", Part("banana", ((2, "N"),)), Part("abc\n", ((1, "B"),))))
    assert train.vocabulary == test.vocabulary == ("a", "b", "n", UNKNOWN_CHARACTER)
    assert train.ids.dtype == np.int64
    assert train.ids.tolist() == [1, 0, 2, 0, 2, 0]
    assert shown(test) == ["a", "b", UNKNOWN_CHARACTER, UNKNOWN_CHARACTER]
    assert (train.separator, train.titles, test.titles) == ("", ((2, "N"),), ((1, "B"),))


@given(st.text(min_size=1), st.text())
def test_characters_come_back_as_they_were(train: str, test: str) -> None:
    learnt, tested = characters(Corpus("x", Part(train), Part(test)))
    assert "".join(shown(learnt)) == train
    assert "".join(shown(tested)) == "".join(each if each in train else UNKNOWN_CHARACTER for each in test)
    assert "".join(learnt.vocabulary[number] for number in encode_prompt(train, learnt)) == train


def test_words_of_prose_are_told_from_punctuation() -> None:
    train, test = words(PROSE)
    assert shown(train) == ["A", "wolf", ".", "B", "The", "wolf’s", "one-eyed", ";", "the", "end", "..."]
    assert shown(test) == ["the", "wolf’s", UNKNOWN_WORD, "."]
    assert (train.separator, train.titles, test.titles) == (" ", ((0, "A"), (3, "B")), ((1, "wolf"),))


def test_words_of_wikitext_are_what_is_between_spaces_and_line_ends_are_tokens() -> None:
    train, test = words(WIKI)
    assert shown(train) == ["<eos>", "=", "A", "=", "<eos>", "<eos>", "the", "<unk>", "the", ",", "<eos>"]
    assert shown(test) == ["<eos>", "=", "<unk>", "=", "<eos>", "<eos>", "the", "<unk>", "<eos>"]
    assert (train.titles, test.titles) == (((1, "A"),), ((1, "B"),))


def test_frequent_words_come_first_and_equals_by_the_alphabet() -> None:
    assert words(WIKI)[0].vocabulary == ("<eos>", "=", "the", ",", "<unk>", "A")
    train, test = words(Corpus("x", Part("c b a b"), Part("")))
    assert train.vocabulary == ("b", "a", "c", UNKNOWN_WORD)
    assert (train.ids.tolist(), len(test)) == ([2, 0, 1, 0], 0)


@given(st.lists(st.text("ab-,’ \n", min_size=1), min_size=1), st.sampled_from(["prose", "wikitext"]))
def test_titles_begin_at_the_first_word_of_their_piece(pieces: list[str], style: str) -> None:
    lines = [f"{piece}\n" for piece in pieces]
    titles = tuple((sum(map(len, lines[:number])), str(number)) for number in range(len(lines)))
    corpus = Corpus("x", Part("".join(lines), titles), Part("a"), words=style)  # type: ignore[arg-type]
    for (start, _), (position, _) in zip(titles, words(corpus)[0].titles, strict=True):
        before = Corpus("x", Part(corpus.train.text[:start]), Part("a"), words=corpus.words)
        assert position == len(words(before)[0])


def test_a_vocabulary_both_ways() -> None:
    vocabulary = Vocabulary(("a", "b", "?"), unknown="?")
    assert vocabulary.number == {"a": 0, "b": 1, "?": 2}
    assert vocabulary.encode(["b", "x", "a", "?"]).tolist() == [1, 2, 0, 2]
    assert vocabulary.encode([]).shape == (0,)


PROMPTS: dict[str, tuple[Callable[[Corpus], tuple[Text, Text]], Corpus, str, list[str]]] = {
    "characters": (characters, PROSE, "wolf ", ["w", "o", "l", "f", " "]),
    "prose": (words, PROSE, " The wolf’s\nend...", ["The", "wolf’s", "end", "..."]),
    "prose with an unknown word": (words, PROSE, "the <unk>.", ["the", "<unk>", "."]),
    "wikitext": (words, WIKI, " = A =  <eos> the <unk>\n,", ["=", "A", "=", "<eos>", "the", "<unk>", ","]),
}


@pytest.mark.parametrize(("level", "corpus", "prompt", "tokens"), PROMPTS.values(), ids=PROMPTS.keys())
def test_a_prompt_in_the_tokens_of_a_text(
    level: Callable[[Corpus], tuple[Text, Text]], corpus: Corpus, prompt: str, tokens: list[str]
) -> None:
    text, _ = level(corpus)
    ids = encode_prompt(prompt, text)
    assert ids.dtype == np.int64
    assert [text.vocabulary[number] for number in ids] == tokens


def test_unknown_words_can_be_written_so() -> None:
    prose, wiki = words(PROSE)[0], words(WIKI)[0]
    assert replace_unknown("The cat’s end ...", prose) == "The <unk> end ..."
    assert replace_unknown("the , cat <unk>", wiki) == "the , <unk> <unk>"
    assert replace_unknown("a 7", characters(PROSE)[0]) == "a 7"


UNFIT: dict[str, tuple[Callable[[Corpus], tuple[Text, Text]], Corpus, str, str]] = {
    "no characters": (characters, PROSE, "", "the prompt holds no characters"),
    "no words": (words, PROSE, " \n", "the prompt holds no words"),
    "strange characters": (characters, PROSE, "a 7 on 8, 7", r"the training text has no character 'a', '7', '8', ','$"),
    "a lone surrogate": (characters, PROSE, "\udcff", r"no character '\\udcff'"),
    "strange words": (words, PROSE, "the cat, cat", r"no word 'cat', ','; <unk> stands for any"),
    "a line end in prose": (words, PROSE, "the end<eos>", r"no word '<eos>'; <unk>"),
    "punctuation in wikitext": (words, WIKI, "the, A", r"no word 'the,'; <unk>"),
    "too long": (words, WIKI, "the " * 12, "the prompt has 12 words, more than the 11 of the training text"),
}


@pytest.mark.parametrize(("level", "corpus", "prompt", "why"), UNFIT.values(), ids=UNFIT.keys())
def test_a_prompt_that_does_not_fit(
    level: Callable[[Corpus], tuple[Text, Text]], corpus: Corpus, prompt: str, why: str
) -> None:
    with pytest.raises(QueryError, match=why):
        encode_prompt(prompt, level(corpus)[0])


def test_prose_that_has_the_names_of_tokens() -> None:
    text, _ = words(Corpus("x", Part("write <eos> or <unk> here"), Part("here")))
    assert shown(text)[1:4] == ["<", "eos", ">"]
    assert [text.vocabulary[number] for number in encode_prompt("write <unk>", text)] == ["write", UNKNOWN_WORD]

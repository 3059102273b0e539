"""Passages around hits."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualform.errors import QueryError, UnknownName
from dualform.table import Table
from dualform.text import Mark, Text, passages, prompt_passage, to_markdown, to_plain, to_snippet
from tests.text.cases import FABLES, SENTENCES, ends_of, fables, hits, sentences, table, text_of


def test_as_fast_as() -> None:
    positions = ends_of("as fast as", FABLES)
    ranked = passages(fables, table(positions[1], positions[2], positions[0]), around=28)
    assert [to_plain(passage) for passage in ranked] == [
        "together, running as fast a[s] they could to get out of",
        "made room for him as fast a[s] he could, and the Horse",
        "The Wolf ran away as fast a[s] he could, and was not seen",
    ]
    assert [passage.title for passage in ranked] == ["THE HARES", "THE MULE", "THE WOLF"]
    assert [passage.score for passage in ranked] == [3, 2, 1]


def test_hits_without_a_position_are_left_out() -> None:
    positions = np.array([None, 20, None], dtype=object)
    found = passages(sentences, Table({"position": positions, "score": np.array([9.0, 8.0, 7.0])}))
    assert [one.to_dict() for one in found] == [
        one.to_dict() for one in passages(sentences, table(20, score=np.full(1, 8.0)))
    ]
    assert passages(sentences, Table({"position": positions[[0, 2]], "score": np.ones(2)})) == []


def test_for_his_contribution() -> None:
    first, second = (at for at, word in enumerate(SENTENCES.split()) if word == "contribution")
    ranked = passages(sentences, table(second, first), around=2)
    assert [to_plain(passage) for passage in ranked] == [
        "for his [contribution] as a",
        "for his [contribution] to the",
    ]
    joined = passages(sentences, table(second, first))
    assert [(one.start, one.end, one.score) for one in joined] == [(0, 35, 2)]
    assert [mark.position for mark in joined[0].marks] == [second, first]


def test_how_far_a_passage_reaches_by_itself() -> None:
    middle = FABLES.index("together")
    (characters,) = passages(fables, table(middle))
    assert middle - 60 <= characters.start <= middle - 50
    assert middle + 50 <= characters.end <= middle + 61
    (words,) = passages(sentences, table(20))
    assert (words.start, words.end) == (8, 33)


@pytest.mark.parametrize(
    ("content", "at", "shown"),
    [
        ("one two three four", 8, "two [t]hree"),  # the words at both ends would be cut
        ("one  \n two", 4, "one [␣] two"),  # at the ends of a text there is nothing to cut
        ("aaaaaaaaaaaaaaaaaaaaa", 10, "aaaaaa[a]aaaaaa"),  # nor a place to cut at within one word
        ("        x        ", 8, "[x]"),
        ("                 ", 8, " [␣] "),
    ],
)
def test_words_are_not_cut_in_half(content: str, at: int, shown: str) -> None:
    (passage,) = passages(text_of(list(content), ""), table(at), around=6)
    assert to_plain(passage) == shown


def test_pieces_of_words_are_words_where_space_is() -> None:
    text = text_of([" run", "ning", " fast", "er", " still", "er"], "")
    (passage,) = passages(text, table(2), around=2)
    assert to_plain(passage) == " running[␣fast]er"


@given(hits(), st.integers(0, 30))
def test_every_hit_is_in_one_passage(case: tuple[Text, Table], around: int) -> None:
    text, hit = case
    ranked = passages(text, hit, most=1000, around=around)
    marks = [(mark.position, mark.score) for passage in ranked for mark in passage.marks]
    assert sorted(marks) == sorted(zip(hit["position"].tolist(), hit["score"].tolist(), strict=True))
    for passage in ranked:
        assert passage.tokens == text.tokens(passage.start, passage.end)
        assert all(passage.start <= mark.position < passage.end for mark in passage.marks)
        assert [mark.score for mark in passage.marks] == sorted((mark.score for mark in passage.marks), reverse=True)
        assert passage.title == text.title_at(passage.marks[0].position)


@given(hits(), st.integers(0, 30), st.integers(1, 3))
def test_passages_are_apart_and_best_first(case: tuple[Text, Table], around: int, most: int) -> None:
    ranked = passages(*case, most=most, around=around)
    assert len(ranked) <= most
    assert [passage.score for passage in ranked] == sorted((passage.score for passage in ranked), reverse=True)
    places = sorted((passage.start, passage.end) for passage in ranked)
    assert all(end + 3 < start for (_, end), (start, _) in pairwise(places))


def test_hits_fill_passages_until_one_more_would_be_needed() -> None:
    text = text_of(["word"] * 100, " ")
    ranked = passages(text, table(10, 50, 12, 90, 52), most=2, around=1)
    assert [[mark.position for mark in passage.marks] for passage in ranked] == [[10, 12], [50]]


def test_a_hit_may_join_two_passages() -> None:
    ranked = passages(text_of(["word"] * 100, " "), table(10, 90, 20, 15), most=3, around=2)
    assert [[mark.position for mark in passage.marks] for passage in ranked] == [[10, 20, 15], [90]]
    assert ranked[0].score == 4


def test_of_one_position_the_first_row_counts() -> None:
    (passage,) = passages(fables, table(5, 5))
    assert passage.marks == (Mark(5, 2.0),)


def test_a_passage_as_data() -> None:
    hit = table(1, visits=np.array([7]), step=np.array([120]), query=np.array([0]))
    (passage,) = passages(text_of(["Her", "main", "role"], " ", titles=((0, "Ada"),)), hit)
    assert (passage.visits, passage.step) == (7, 120)
    assert json.loads(json.dumps(passage.to_dict())) == {
        "start": 0,
        "end": 3,
        "tokens": ["Her", "main", "role"],
        "separator": " ",
        "marks": [{"position": 1, "score": 1.0, "visits": 7, "step": 120}],
        "score": 1.0,
        "title": "Ada",
        "visits": 7,
        "step": 120,
    }


@pytest.mark.parametrize(
    ("hit", "choices", "what"),
    [
        (table(1, 2, query=np.array([0, 1])), {}, r"choose it with .where\(query=...\)"),
        (table(1, 44), {}, "position 44 is outside of the text, which has 44 tokens"),
        (table(-1), {}, "position -1 is outside of the text"),
        (Table({"position": np.array([0.5]), "score": np.array([1.0])}), {}, "must be integers"),
        (Table({"position": np.array([0]), "score": np.array([np.nan])}), {}, "NaN"),
        (table(1), {"most": 0}, "most must be at least 1"),
        (table(1), {"around": -1}, "around at least 0, got most=3 and around=-1"),
    ],
)
def test_questions_that_do_not_fit(hit: Table, choices: dict[str, int], what: str) -> None:
    with pytest.raises(QueryError, match=what):
        passages(sentences, hit, **choices)


def test_a_table_without_positions_says_what_it_has() -> None:
    with pytest.raises(UnknownName, match="no column 'position'; choose from 'score'"):
        passages(sentences, Table({"score": np.ones(1)}))


def test_no_hits_no_passages() -> None:
    assert passages(fables, table()) == []
    assert passages(fables, Table({"position": np.empty(0), "score": np.empty(0)})) == []
    assert "no passages" in to_snippet([])


def test_a_prompt_is_shown_like_a_passage() -> None:
    assert to_plain(prompt_passage("At ", separator="")) == "At[␣]"
    assert to_markdown(prompt_passage(["Her", "principal"], separator=" ")) == "Her **principal**"
    with pytest.raises(QueryError, match="prompt is empty"):
        prompt_passage([], separator="")

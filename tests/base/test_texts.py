"""Texts in one buffer are a sequence of `str` as any other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.texts import Texts

WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=6)


@given(WORDS)
def test_texts_come_back(words):
    texts = Texts.of(words)
    assert (len(texts), list(texts)) == (len(words), words)
    assert texts == words
    assert texts == tuple(words)
    assert texts == Texts.of(iter(words))
    assert Texts.of(texts) is texts
    assert texts[1:] == tuple(words[1:])
    assert [texts[-1 - i] for i in range(len(words))] == words[::-1]
    assert hash(texts) == hash(Texts.of(words))


def test_other_texts_are_not_equal():
    assert Texts.of(["ab", "c"]) != Texts.of(["a", "bc"])
    assert Texts.of(["ab"]) != ["ac"]
    assert Texts.of([]) != "text"
    assert repr(Texts.of(["é"])) == "Texts.of(('é',))"


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError):
        Texts.of(["a", "b"])[index]


def test_half_a_pair_is_no_text():
    with pytest.raises(UnicodeEncodeError):
        Texts.of(["\ud800"])

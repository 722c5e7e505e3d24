"""The search finds the field's words: each leads to its page, among the first three."""

import pytest

from pages.search import EXPECTED, Index


@pytest.fixture(scope="module")
def index(root):
    return Index(root / "docs")


@pytest.mark.parametrize("query", EXPECTED)
def test_a_word_of_the_field_finds_its_page(index, query):
    assert EXPECTED[query] in index.search(query)[:3]


def test_there_are_eighty_words():
    assert len(EXPECTED) >= 80

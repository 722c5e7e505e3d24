import sys

import pytest

from npu_llm.errors import OptionError
from npu_llm.structured.form import Form, given_form


@pytest.mark.parametrize(
    "options",
    [
        {"schema": {"type": "nothing"}},
        {"schema": {"$ref": "http://example.invalid/x"}},
        {"schema": {"type": "string", "pattern": "(a"}},
        {"schema": {"enum": [float("nan")]}},
        {"schema": "not a mapping"},
        {"regex": "["},
        {"regex": "(?=a)b"},
        {"regex": 3},
        {"grammar": "start: ("},
        {"grammar": "other: 'a'"},
        {"regex": "a", "schema": {"type": "object"}},
    ],
)
def test_what_cannot_bound_an_answer_is_refused(options):
    with pytest.raises(OptionError, match="answer-form"):
        given_form(options)


def test_options_without_a_form_stay():
    options = {"max_new_tokens": 3, "schema": None}
    assert given_form(options) is None
    assert options == {"max_new_tokens": 3}
    assert given_form({"regex": "a+"}) == Form.of_regex("a+")


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"npu-llm\[structured\].*missing-llguidance"):
        Form.of_json()

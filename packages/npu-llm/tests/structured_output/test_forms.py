import re

import pytest
import torch

from npu_llm.errors import OptionError
from npu_llm.structured_output import Form, given_form

LIST = 'root ::= item+ # a list\nitem ::= "- " [a-c]{1,3} "\\n"\n'


def test_grammars_of_llama_cpp_are_read():
    assert Form.of_grammar(LIST).source == given_form({"grammar": LIST}).source
    assert Form.of_grammar('start: "a"').source != Form.of_grammar('root ::= "a"').source


@pytest.mark.parametrize(
    "text", ["root ::= (", "root ::= missing", 'other ::= "a"', "root ::= [", 'root ::= "\\q"']
)
def test_what_is_not_a_grammar_of_llama_cpp_is_refused(text):
    with pytest.raises(OptionError, match=r"`grammar` must describe.*answer-form"):
        Form.of_grammar(text)


def test_classes_of_expressions_are_those_of_ascii(constraint_of):
    for form in (
        Form.of_regex(r"\d\w[\d.]\D\W"),
        Form.of_schema({"type": "string", "pattern": r"^\d\w[\d.]\D\W$"}),
    ):
        text = constraint_of(form).text(lambda allowed: allowed[-1])
        assert re.fullmatch(r'"?[0-9][0-9A-Za-z_][0-9.][^0-9][^0-9A-Za-z_]"?', text)


def test_a_choice_is_one_of_its_texts(constraint_of):
    assert constraint_of(Form.of_choices(["yes", "no"])).text(max) in ("yes", "no")
    for wrong in ([], [""], [3]):
        with pytest.raises(OptionError, match="answer-form"):
            Form.of_choices(wrong)


RECURSIVE = {
    "type": "object",
    "properties": {
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "leaf": {"$ref": "#/$defs/leaf"},
    },
    "required": ["next", "leaf"],
    "additionalProperties": False,
    "$defs": {"leaf": {"const": 1}},
}  # fmt: skip


def test_schemas_may_refer_to_themselves(constraint_of):
    text = constraint_of(Form.of_schema(RECURSIVE)).text(max)
    assert text.replace(" ", "").replace("\n", "").startswith('{"next":')


@pytest.fixture
def constraint_of(byte_tokenizer):
    """Drawn: takes a form; its text(choose) chooses each token among those that may come."""
    maker, decode, vocabulary = byte_tokenizer

    class Drawn:
        def __init__(self, form):
            self.constraint = maker.make(form)

        def text(self, choose):
            tokens = []
            while not self.constraint.is_over and len(tokens) < 60:
                allowed = (self.constraint.mask(torch.zeros(vocabulary)) == 0).nonzero()
                token = int(choose(allowed.flatten().tolist()))
                if token == vocabulary - 1:
                    break
                self.constraint.advance(token)
                tokens.append(token)
            return decode(tokens)

    return Drawn

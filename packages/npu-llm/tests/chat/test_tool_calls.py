import json

import pytest

from npu_llm.chat.tool_calls import CallReader, call_schema, read_calls, style_of

NAMES = ["find", "add"]
CALL = '{"name": "find", "arguments": {"a": "}<tool"}}'


@pytest.mark.parametrize(
    "style, text, expected",
    [
        ("tags", f"<tool_call>\n{CALL}\n</tool_call>", ["find"]),
        ("tags", f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name":"add"}}</tool_call>', NAMES),
        ("marker", f"[TOOL_CALLS][{CALL}]", ["find"]),
        ("marker", '[TOOL_CALLS]find[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{}', NAMES),
        ("bare", '{"name": "find", "parameters": {"a": 1}}', ["find"]),
        ("bare", '<|python_tag|>{"name": "find", "parameters": {}}; {"name": "add"}', NAMES),
        ("bare", '{"name": "other", "parameters": {}}', []),
        ("bare", '{"name": "find", "parameters": 3}', []),
        ("bare", '{"name": "find"', []),
        ("bare", "[" * 100_000, []),
        ("tags", "<tool_call>nothing</tool_call>", []),
        ("marker", "[TOOL_CALLS]find[ARGS]{", []),
    ],
)
def test_calls_are_read_as_models_write_them(style, text, expected):
    assert [call.name for call in read_calls(text, style, NAMES)] == expected


def test_arguments_are_kept():
    (call,) = read_calls(f"<tool_call>{CALL}</tool_call>", "tags", NAMES)
    assert json.loads(call.arguments) == {"a": "}<tool"}
    assert call.content()["function"]["name"] == "find"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "style, text, passed, count",
    [
        ("tags", f"I look. <tool_call>{CALL}</tool_call>", "I look. ", 1),
        ("tags", "a < b and <tool> too", "a < b and <tool> too", 0),
        ("tags", "<tool_call>oops", "<tool_call>oops", 0),
        ("bare", '{"name": "find", "parameters": {}}', "", 1),
        ("bare", '{"a": 1} is JSON', '{"a": 1} is JSON', 0),
        ("bare", "plain words", "plain words", 0),
        ("marker", f"[TOOL_CALLS] [{CALL}]", "", 1),
    ],
)
def test_a_stream_is_passed_on_up_to_its_calls(style, text, passed, count, size):
    reader = CallReader(style, NAMES)
    found = "".join(reader.take(text[i : i + size]) for i in range(0, len(text), size))
    rest, calls = reader.end()
    assert (found + rest, len(calls)) == (passed, count)


def test_the_style_is_told_by_the_template():
    assert style_of("{{ tools }} <tool_call>") == "tags"
    assert style_of("{{ tools }} [TOOL_CALLS]") == "marker"
    assert style_of("{{ tools }}") == "bare"
    assert style_of("{{ messages }}") is None
    assert style_of(None) is None


def test_a_call_that_must_come_has_a_schema():
    tools = [{"name": "find", "parameters": {"type": "object"}}, {"name": "add"}]
    one = call_schema(tools, "bare", name="add")
    assert one["properties"]["name"] == {"const": "add"}
    assert one["required"] == ["name", "parameters"]
    assert len(call_schema(tools, "tags")["anyOf"]) == 2

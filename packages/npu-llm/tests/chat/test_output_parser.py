# ruff: noqa: ISC004
"""OutputParser: calls, reasoning and text, as models of each style write them."""

import json

import pytest

from npu_llm.chat.call_styles import CALL_STYLES
from npu_llm.chat.output_parser import OutputParser
from npu_llm.chat.thinking_styles import THINKING_STYLES

STYLES = {style.name: style for style in CALL_STYLES}
THINKING = {style.start: style for style in THINKING_STYLES}
PLAIN_THINKING = THINKING_STYLES[-1]
ARGUMENTS = '{"a": "x\\"}", "n": 3}'
FUNCTIONS = [
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
    {"name": "add"},
]
FIND = f'{{"name": "find", "arguments": {ARGUMENTS}}}'
FIND_PARAMETERS = f'{{"name": "find", "parameters": {ARGUMENTS}}}'
ADD = '{"name": "add"}'
DSML = "｜DSML｜"
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
# Each has a call of find and one of add.
ANSWERS = {
    "harmony": (
        f"<|channel|>commentary to=functions.find <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
        "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
        f" to=functions.find<|channel|>commentary<|message|>{ARGUMENTS}<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.add<|message|>{}",
    ),
    "functionary-v3.2": (
        f"find\n{ARGUMENTS}\n>>>add\n{{}}",
        f"all\nHi\n>>>find\n{ARGUMENTS}>>>add\n{{}}",
    ),
    "functionary-v2": (
        f" find\n<|content|> {ARGUMENTS}\n<|from|>assistant\n"
        "<|recipient|>add\n<|content|>{}<|stop|>",
    ),
    "functionary-v3.1": (f"<function=find>{ARGUMENTS}</function><function=add>{{}}</function>",),
    "deepseek-v3": (
        f"<｜tool▁calls▁begin｜>{V3}find\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
        f"{V3}add\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.1": (
        f"Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.2": (
        f'<{DSML}function_calls>\n<{DSML}invoke name="find">\n'
        f'<{DSML}parameter name="a" string="true">x"}}</{DSML}parameter>\n'
        f'<{DSML}parameter name="n" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f'<{DSML}invoke name="add">\n</{DSML}invoke>\n</{DSML}function_calls>',
    ),
    "deepseek-v4": (
        f'<{DSML}tool_calls>\n<{DSML}invoke name="find">\n'
        f'<{DSML}parameter name="a" string="true">x"}}</{DSML}parameter>\n'
        f'<{DSML}parameter name="n" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n'
        f'<{DSML}invoke name="add">\n</{DSML}invoke>\n</{DSML}tool_calls>',
    ),
    "kimi-k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.add:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "kimi-k3": (
        '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|>'
        '<|open|>argument key="a" type="string"<|sep|>x"}<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="add" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
    ),
    "step-3": (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="find"><steptml:parameter name="a">x"}</steptml:parameter>'
        '<steptml:parameter name="n">3</steptml:parameter></steptml:invoke><｜tool_call_end｜>'
        "<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="add"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
    ),
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="find">\n<parameter name="a">x"}</parameter>\n'
        '<parameter name="n">3</parameter>\n</invoke>\n<invoke name="add">\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "seed-oss": (
        '<seed:tool_call>\n<function=find>\n<parameter=a>x"}</parameter>\n'
        "<parameter=n>3</parameter>\n</function>\n<function=add>\n</function>\n</seed:tool_call>",
        '<seed:tool_call>\n<function=find>\n<parameter=a>\nx"}\n</parameter>\n'
        "<parameter=n>\n3\n</parameter>\n</function>\n</seed:tool_call>"
        "<seed:tool_call>\n<function=add>\n</function>\n</seed:tool_call>",
    ),
    "glm-4.5": (
        "\n<tool_call>find\n<arg_key>a</arg_key>\n<arg_value>x\"}</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>add\n</tool_call>",
        '<tool_call>find<arg_key>a</arg_key><arg_value>x"}</arg_value>'
        "<arg_key>n</arg_key><arg_value>3</arg_value></tool_call><tool_call>add</tool_call>",
    ),
    "qwen3-coder": (
        'Hi\n<tool_call>\n<function=find>\n<parameter=a>\nx"}\n</parameter>\n'
        "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=add>\n</function>\n</tool_call>",
    ),
    "command-r7b": (
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "find", "parameters": '
        f'{ARGUMENTS}}},\n {{"tool_call_id": "1", "tool_name": "add", "parameters": {{}}}}\n]'
        "<|END_ACTION|>",
    ),
    "command-r": (
        f'Action: ```json\n[\n  {{"tool_name": "find", "parameters": {ARGUMENTS}}},\n'
        '  {"tool_name": "add", "parameters": {}}\n]\n```',
    ),
    "apertus": (f'<|tools_prefix|>[{{"find": {ARGUMENTS}}}, {{"add": {{}}}}]<|tools_suffix|>',),
    "gemma-4": (
        '<|tool_call>call:find{a:<|"|>x"}<|"|>,n:3}<tool_call|><|tool_call>call:add{}<tool_call|>',
    ),
    "functiongemma": (
        '<start_function_call>call:find{a:<escape>x"}<escape>,n:3}<end_function_call>'
        "<start_function_call>call:add{}<end_function_call>",
    ),
    "phi-4": (f"<|tool_call|>[{FIND},{ADD}]<|/tool_call|>", f"functools[{FIND},{ADD}]"),
    "granite-3": (f"<|tool_call|>[{FIND}, {ADD}]",),
    "granite-20b": (f"<function_call> {FIND}\n<function_call>{ADD}",),
    "internlm-2": (
        f"Hi<|action_start|><|plugin|>\n{FIND_PARAMETERS}<|action_end|>"
        f"<|action_start|><|plugin|>\n{ADD}<|action_end|>",
    ),
    "longcat": (
        f"<longcat_tool_call>{FIND}</longcat_tool_call><longcat_tool_call>{ADD}</longcat_tool_call>",
    ),
    "nemotron": (f"<TOOLCALL>[{FIND}, {ADD}]</TOOLCALL>",),
    "jamba": (
        f"<tool_calls>[\n{FIND}, {ADD}\n]</tool_calls>",
        f"<tool_calls>\n{FIND}\n{ADD}\n</tool_calls>",
    ),
    "gigachat-3": (
        f"Hi<|message_sep|>\n\nfunction call<|role_sep|>\n{FIND}<|message_sep|>\n\n"
        f"function call<|role_sep|>\n{ADD}",
    ),
    "firefunction": (f" functools[{FIND}, {ADD}]",),
    "lfm-2": (
        '<|tool_call_start|>[find(a="x\\"}", n=3), add()]<|tool_call_end|>',
        f"<|tool_call_start|>[{FIND}, {ADD}]<|tool_call_end|>",
    ),
    "olmo-3": ('<function_calls>\nfind(a="x\\"}", n=3)\nadd()\n</function_calls>',),
    "llama-4": (
        '<|python_start|>[find(a="x\\"}", n=3), add()]<|python_end|>',
        "[find('x\"}', 3),add()]",
    ),
    "hermes": (
        f"Hi\n<tool_call>\n{FIND}\n</tool_call>\n<tool_call>\n{ADD}\n</tool_call>",
        f"<tool_call>{FIND}\n</tool_call><tool_call>{ADD}",
    ),
    "mistral-args": (
        f"Hi[TOOL_CALLS]find[ARGS]{ARGUMENTS}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{{}}",
    ),
    "mistral": (f'[TOOL_CALLS] [{FIND}, {{"name": "add", "arguments": {{}}, "id": "abcdefghi"}}]',),
    "xlam": (
        f"[{FIND}, {ADD}]",
        f"```json\n[{FIND}, {ADD}]\n```",
        f'{{"type": "function", "function": {FIND}}}, {{"function": {ADD}}}',
    ),
    "llama-3": (
        f"{FIND_PARAMETERS}; {ADD}",
        f"<|python_tag|>{FIND_PARAMETERS}; {ADD}",
        '<|python_tag|>find.call(a="x\\"}", n=3); add.call()',
        "[find(a='x\"}', n=3), add()]",
    ),
}  # fmt: skip


def parsed(text, style, size=1 << 20, *, thinking=None, functions=FUNCTIONS, **options):
    """The parser's results for a text in pieces of a size."""
    parser = OutputParser(thinking, style and STYLES[style], functions, **options)
    found = []
    for start in range(0, len(text), size):
        found += parser.take(text[start : start + size])
    found += parser.end()
    return parser.parsed, found


def test_each_style_has_an_answer():
    assert ANSWERS.keys() == STYLES.keys()


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 20])
@pytest.mark.parametrize("style", ANSWERS)
def test_calls_are_read_as_models_write_them(style, size):
    for text in ANSWERS[style]:
        for is_stream in (True, False):
            output, deltas = parsed(text, style, size, is_stream=is_stream)
            assert [call.name for call in output.calls] == ["find", "add"], text
            assert json.loads(output.calls[0].arguments) == {"a": 'x"}', "n": 3}
            assert json.loads(output.calls[1].arguments) == {}
            assert output.content == ("Hi" if "Hi" in text else "")
            assert len({call.id for call in output.calls}) == 2
            assert [delta.index for delta in deltas if delta.kind == "call"] == [0, 1]


def test_arguments_come_while_they_are_written():
    text = "<tool_call>" + FIND
    parser = OutputParser(None, STYLES["hermes"], FUNCTIONS)
    kinds = [[delta.kind for delta in parser.take(char)] for char in text]
    first = kinds.index(["call", "arguments"])
    assert first < text.index("3")
    assert kinds[first + 1 :].count(["arguments"]) > 10


def test_a_long_string_of_a_tag_comes_piece_by_piece():
    parser = OutputParser(None, STYLES["qwen3-coder"], FUNCTIONS)
    parser.take("<tool_call>\n<function=find>\n<parameter=a>\nline 1\n")
    (delta,) = parser.take('line "2" and ')
    assert (delta.kind, delta.text) == ("arguments", '\\nline \\"2\\" and ')
    parser.take("\n</parameter>\n</function>\n</tool_call>")
    parser.end()
    assert json.loads(parser.parsed.calls[0].arguments) == {"a": 'line 1\nline "2" and '}


@pytest.mark.parametrize(
    "style, text",
    [
        ("hermes", "<tool_call>oops"),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call> and on'),
        ("hermes", '<tool_call>{"name": "find"'),
        ("hermes", '{"a": 1} is JSON'),
        ("hermes", "a < b and <tool> too "),
        ("llama-3", '{"name": "other", "parameters": {}}'),
        ("llama-3", '{"name": "find", "parameters": 3}'),
        ("llama-3", "[1, 2]"),
        ("llama-3", "[" * 10_000),
        ("llama-3", "  plain words"),
        ("llama-4", "[find(a=__import__('os'))]"),
        ("llama-4", "[find(*x)]"),
        ("mistral-args", "[TOOL_CALLS]find[ARGS]3"),
        ("mistral-args", "[TOOL_CALLS]" + "x" * 500),
        ("glm-4.5", "<tool_call>other\n</tool_call>"),
        ("functionary-v3.2", "not a function\nwith text >>> more"),
        ("gemma-4", '<|tool_call>call:find{a:<|"|>x}<tool_call|>'),
        ("command-r", "Action: none"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_what_is_not_a_call_stays_text(style, text, size):
    output, _ = parsed(text, style, size, is_stream=False)
    assert (output.content, output.calls) == (text, [])


def test_text_after_a_call_and_a_broken_second_call_are_kept():
    text = f"<tool_call>{FIND}</tool_call> done <tool_call>oops</tool_call>"
    output, _ = parsed(text, "hermes", 2)
    assert [call.name for call in output.calls] == ["find"]
    assert output.content == "done <tool_call>oops</tool_call>"


def test_a_call_that_breaks_off_in_a_stream_stays_as_it_came():
    text = '<tool_call>{"name": "find", "arguments": {"a": "x'
    output, _ = parsed(text, "hermes", 4)
    assert output.calls[0].arguments == '{"a": "x'
    assert output.content == ""
    whole, _ = parsed(text, "hermes", 4, is_stream=False)
    assert (whole.content, whole.calls) == (text, [])


def test_only_the_first_call_counts_where_calls_are_not_parallel():
    output, _ = parsed(ANSWERS["hermes"][0], "hermes", is_parallel=False)
    assert [call.name for call in output.calls] == ["find"]
    assert output.content == "Hi"


def test_calls_are_text_where_there_are_no_functions():
    text = ANSWERS["hermes"][0]
    assert parsed(text, "hermes", functions=())[0].content == text
    assert parsed("all\nHi", "functionary-v3.2", functions=())[0].content == "Hi"


def test_identifiers_are_those_that_templates_accept():
    calls = parsed(ANSWERS["mistral"][0], "mistral")[0].calls
    assert len(calls[0].id) == 9
    assert calls[0].id.isalnum()
    calls = parsed(ANSWERS["mistral-args"][0], "mistral-args")[0].calls
    assert calls[1].id == "abcdefghi"
    calls = parsed(ANSWERS["kimi-k2"][0], "kimi-k2")[0].calls
    assert [call.id for call in calls] == ["functions.find:0", "functions.add:1"]


@pytest.mark.parametrize("size", [1, 4, 1 << 20])
@pytest.mark.parametrize(
    "start, text, is_thinking, expected",
    [
        ("<think>", "<think>\nhm\n\nso\n</think>\n\nYes. ", False, ("hm\n\nso", "Yes. ")),
        ("<think>", "hm\n</think>\n\nYes.", True, ("hm", "Yes.")),
        ("<think>", "<think>hm</think>Yes.", True, ("hm", "Yes.")),
        ("<think>", "<think>cut", False, ("cut", "")),
        ("<think>", "Yes.</think> And no.", False, ("", "Yes. And no.")),
        ("<think>", "<think>a</think>b<think>c</think>d", False, ("a\nc", "bd")),
        ("<think>", " plain", False, ("", " plain")),
        ("[THINK]", "[THINK]hm[/THINK]Yes.", False, ("hm", "Yes.")),
        ("<seed:think>", "<seed:think>hm</seed:think>Yes.", False, ("hm", "Yes.")),
        (
            "<|START_THINKING|>",
            "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
            False,
            ("hm", "Yes."),
        ),
        ("<|channel>thought", "<|channel>thought\nhm<channel|>Yes.", False, ("hm", "Yes.")),
    ],
)
def test_reasoning_is_separated(start, text, is_thinking, expected, size):
    thinking = PLAIN_THINKING if start == "<think>" else THINKING[start]
    output, _ = parsed(text, None, size, thinking=thinking, is_thinking=is_thinking)
    assert (output.reasoning, output.content) == expected


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_places_of_reasoning_are_kept(size):
    text = (
        "x" * 70_000 + "<think>hm</think>b<think>so</think>c"
    )  # text that was read long ago is dropped
    parser = OutputParser(PLAIN_THINKING, None)
    for start in range(0, len(text), size):
        parser.take(text[start : start + size])
    parser.end()
    assert [text[start:end] for start, end in parser.thoughts] == ["hm", "so"]
    assert parser.parsed.content.endswith("xbc")


@pytest.mark.parametrize("size", [1, 6, 1 << 20])
def test_channels_are_separated(size):
    thinking = THINKING["<|channel|>analysis<|message|>"]
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
        f"I look.<|end|><|start|>assistant<|channel|>commentary to=functions.find "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    )
    output, _ = parsed(text, "harmony", size, thinking=thinking)
    assert (output.reasoning, output.content, len(output.calls)) == ("hm", "I look.", 1)
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    output, _ = parsed(text, "harmony", size, thinking=thinking)
    assert (output.reasoning, output.content) == ("hm", "Yes.")
    output, _ = parsed("<|channel|>fin", "harmony", size, thinking=thinking)
    assert output.content == ""
    output, _ = parsed("Yes.", "harmony", size, thinking=thinking)
    assert output.content == "Yes."


def test_a_call_may_follow_reasoning():
    text = f"<think>hm</think>\n\n<tool_call>{FIND}</tool_call>"
    output, deltas = parsed(text, "hermes", thinking=PLAIN_THINKING)
    assert [delta.kind for delta in deltas] == ["reasoning", "call", "arguments"]
    output, _ = parsed(f"hm</think>{FIND_PARAMETERS}", "llama-3", thinking=PLAIN_THINKING,
                       is_thinking=True)  # fmt: skip
    assert [call.name for call in output.calls] == ["find"]
    kimi = "hm" + ANSWERS["kimi-k2"][0]
    output, _ = parsed(kimi, "kimi-k2", thinking=PLAIN_THINKING, is_thinking=True)
    assert (output.reasoning, len(output.calls)) == ("hm", 2)

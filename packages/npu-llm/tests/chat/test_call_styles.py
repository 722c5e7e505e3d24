"""Styles of tool calls and reasoning, detected from chat templates."""

import pytest

from npu_llm.chat.call_styles import CALL_STYLES, call_style
from npu_llm.chat.thinking_styles import THINKING_STYLES, thinking_style

# Parts that only templates of some models contain.
TEMPLATES = {
    "{{ tools }} <|start|>assistant<|channel|>analysis<|message|>": "harmony",
    "{{ tools }} >>>all\n": "functionary-v3.2",
    "{{ tools }} <|from|>assistant\n<|recipient|>all\n<|content|>": "functionary-v2",
    "{{ tools }} <function=x>{}</function>": "functionary-v3.1",
    "{{ tools }} <｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json": "deepseek-v3",
    "{{ tools }} <｜tool▁calls▁begin｜>x<｜tool▁sep｜>": "deepseek-v3.1",
    "{{ tools }} <tool_call>\n<function=x>\n<parameter=y>": "qwen3-coder",
    "{{ tools }} <tool_call>x\n<arg_key>": "glm-4.5",
    '{{ tools }} <tool_call>\n{"name": ...}\n</tool_call>': "hermes",
    "{{ tools }} <tool_calls>[]</tool_calls>": "jamba",
    "{{ tools }} [TOOL_CALLS] [": "mistral",
    "{{ tools }} [TOOL_CALLS]x[ARGS]": "mistral-args",
    "{{ tools }} <|START_ACTION|>[": "command-r7b",
    "{{ tools }} Action: ```json\n tool_name": "command-r",
    "{{ tools }} <|start_of_role|> <|tool_call|>": "granite-3",
    "{{ message['tools'] }} <|tool|> <|/tool|>": "phi-4",
    "{{ tools }} 'role': 'function call' <|role_sep|> <|message_sep|>": "gigachat-3",
    "{{ tools }} <|python_tag|> ipython": "llama-3",
    "{{ tools }}": "llama-3",
}  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_a_style(template):
    assert call_style(template).name == TEMPLATES[template]


def test_a_template_without_tools_has_none():
    assert call_style("{{ messages }}") is None
    assert call_style(None) is None


def test_tokens_decide_where_the_template_does_not():
    assert call_style("{{ tools }}", ["[TOOL_CALLS]"]).name == "mistral"
    assert thinking_style("{{ messages }}", ["<think>", "</think>"]).start == "<think>"
    assert thinking_style("{{ messages }}", ["<think>"]) is None


def test_no_mark_begins_another_of_its_style():
    for style in (*CALL_STYLES, *THINKING_STYLES):
        marks = style.openers if hasattr(style, "openers") else style.marks
        assert not [(a, b) for a in marks for b in marks if a != b and b.startswith(a)]


@pytest.mark.parametrize(
    "template, end",
    [
        ("<think>\n", "</think>"),
        ("content.split('</think>')[-1]", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
    ],
)
def test_a_template_has_a_style_of_reasoning(template, end):
    assert thinking_style(template).end == end


def test_a_prompt_may_open_the_reasoning():
    style = thinking_style("<think>")
    assert style.is_open("<|im_start|>assistant\n<think>\n")
    assert not style.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not style.is_open("<|im_start|>assistant\n")

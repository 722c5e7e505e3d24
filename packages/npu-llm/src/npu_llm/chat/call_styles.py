"""Styles of tool calls: a table of the formats in which models write calls, and its lookup."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

__all__ = ["CALL_STYLES", "CallStyle", "Kind", "call_style"]

# "json": an object with name and arguments, or a list of these. "named": a name, a separator, and
# the arguments as JSON. "tags": a name, and one tag per argument. "python": Python calls. "braces":
# call:name{key:value}. "channels": messages with the recipient in their header.
Kind = Literal["json", "named", "tags", "python", "braces", "channels"]


@dataclass(frozen=True, kw_only=True)
class CallStyle:
    """One format of tool calls.

    Attributes:
        name: the style's name.
        kind: the grammar of a call.
        signs: groups of strings. The style matches if the chat template contains all strings of a
            group, or the tokenizer has them as tokens.
        openers: marks before calls, in order; each may be missing.
        closers: marks after calls, in order; each may be missing.
        frame: the text before all calls, before each, after each and after all, for answers that
            must call; None for the first opener and closer, around the whole list or else around
            each call.
        is_bare: whether calls may start an answer without a mark.
        is_list: whether calls form a list.
        keys: keys of name and arguments, for "json".
        name_mark: mark before a name; "" if an opener precedes the name.
        separator: mark between a name and its arguments.
        id_mark: mark between a name and an identifier.
        fence: optional marks before and after arguments.
        key_mark, key_end: marks around an argument's name, for "tags".
        head_end: end of a tag that may have attributes after a name.
        value_mark, value_end: marks around an argument's value.
        call_end: mark after the last argument; "" if a closer follows.
        is_padded: whether a line break surrounds each value.
        quote: mark on both sides of strings, for "braces".
        starts: marks before a message's header, for "channels".
        ends: marks that end a message.
        begins_in_header: whether the prompt ends with the first mark of a header.
        prefix: prefix of names, such as the namespace "functions.".
        ids: form of identifiers that the chat template accepts.
        ends_thinking: whether an opener ends the reasoning.
    """

    name: str
    kind: Kind
    signs: tuple[tuple[str, ...], ...]
    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    frame: tuple[str, str, str, str] | None = None
    is_bare: bool = False
    is_list: bool = False
    keys: tuple[str, str] = ("name", "arguments")
    name_mark: str = ""
    separator: str = ""
    id_mark: str = ""
    fence: tuple[str, str] = ("", "")
    key_mark: str = ""
    key_end: str = ">"
    head_end: str = ""
    value_mark: str = ""
    value_end: str = ""
    call_end: str = ""
    is_padded: bool = False
    quote: str = ""
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    begins_in_header: bool = False
    prefix: str = ""
    ids: Literal["random", "short", "indexed"] = "random"
    ends_thinking: bool = False

    @property
    def written_frame(self) -> tuple[str, str, str, str]:
        """The frame of required calls."""
        if self.frame is not None:
            return self.frame
        first = "" if self.is_bare else next(iter(self.openers), "")
        last = "" if self.is_bare else next(iter(self.closers), "")
        return (f"{first}[", "", "", f"]{last}") if self.is_list else ("", first, last, "")

    @property
    def has_name_tag(self) -> bool:
        """Whether the mark before a name can start a call without an opener."""
        return self.kind in ("named", "tags") and self.name_mark.startswith("<")

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, some of which are special tokens."""
        parts = (
            *self.openers, *self.closers, *self.starts, *self.ends, *self.fence, self.name_mark,
            self.separator, self.id_mark, self.key_mark, self.head_end, self.value_mark,
            self.value_end, self.call_end, self.quote,
        )  # fmt: skip
        return tuple(dict.fromkeys(part for part in parts if len(part) > 2))


_DSML = "｜DSML｜"
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_ENDS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_FRAME = (*_DEEPSEEK, *_DEEPSEEK_ENDS)

# Checked in this order; special styles come before styles whose signs they contain.
CALL_STYLES: tuple[CallStyle, ...] = (
    CallStyle(
        name="harmony", kind="channels", signs=(("<|channel|>", "<|message|>"),),
        starts=("<|start|>", "<|channel|>"), separator="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"), prefix="functions.",
        fence=("<|constrain|>json", ""),
    ),
    CallStyle(
        name="functionary-v3.2", kind="channels", signs=((">>>all", "tools"),), starts=(">>>",),
        separator="\n", begins_in_header=True,
    ),
    CallStyle(
        name="functionary-v2", kind="channels", signs=(("<|recipient|>", "<|content|>"),),
        starts=("<|from|>",), name_mark="<|recipient|>", separator="<|content|>",
        ends=("<|stop|>",), begins_in_header=True,
    ),
    CallStyle(
        name="deepseek-v3.2", kind="tags", signs=((f"{_DSML}function_calls",),),
        openers=(f"<{_DSML}function_calls>",), closers=(f"</{_DSML}function_calls>",),
        name_mark=f'<{_DSML}invoke name="', separator='"', head_end=">",
        key_mark=f'<{_DSML}parameter name="', key_end='"', value_end=f"</{_DSML}parameter>",
        call_end=f"</{_DSML}invoke>",
    ),
    CallStyle(
        name="deepseek-v4", kind="tags", signs=((f"{_DSML}tool_calls",),),
        openers=(f"<{_DSML}tool_calls>",), closers=(f"</{_DSML}tool_calls>",),
        name_mark=f'<{_DSML}invoke name="', separator='"', head_end=">",
        key_mark=f'<{_DSML}parameter name="', key_end='"', value_end=f"</{_DSML}parameter>",
        call_end=f"</{_DSML}invoke>",
    ),
    CallStyle(
        name="deepseek-v3", kind="named", signs=(("<｜tool▁calls▁begin｜>", "```json"),),
        openers=_DEEPSEEK, closers=_DEEPSEEK_ENDS, name_mark="function<｜tool▁sep｜>",
        separator="\n", fence=("```json\n", "\n```"), frame=_DEEPSEEK_FRAME,
    ),
    CallStyle(
        name="deepseek-v3.1", kind="named", signs=(("<｜tool▁calls▁begin｜>",),),
        openers=_DEEPSEEK, closers=_DEEPSEEK_ENDS, separator="<｜tool▁sep｜>",
        frame=_DEEPSEEK_FRAME,
    ),
    CallStyle(
        name="kimi-k3", kind="tags", signs=(("<|open|>", "<|sep|>", "argument"),),
        openers=("<|open|>tools<|sep|>",), closers=("<|close|>tools<|sep|>",),
        name_mark='<|open|>call tool="', separator='"', head_end="<|sep|>",
        key_mark='<|open|>argument key="', key_end='"', value_end="<|close|>argument<|sep|>",
        call_end="<|close|>call<|sep|>",
    ),
    CallStyle(
        name="kimi-k2", kind="named", signs=(("<|tool_call_argument_begin|>",),),
        openers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        closers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        frame=("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>",
               "<|tool_calls_section_end|>"),
        separator="<|tool_call_argument_begin|>", prefix="functions.", ids="indexed",
        ends_thinking=True,
    ),
    CallStyle(
        name="step-3", kind="tags", signs=(("steptml:invoke",),),
        openers=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function<｜tool_sep｜>"),
        closers=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        frame=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>",
               "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        name_mark='<steptml:invoke name="', separator='">',
        key_mark='<steptml:parameter name="', key_end='">', value_end="</steptml:parameter>",
        call_end="</steptml:invoke>",
    ),
    CallStyle(
        name="minimax-m2", kind="tags", signs=(("<minimax:tool_call>",),),
        openers=("<minimax:tool_call>",), closers=("</minimax:tool_call>",),
        name_mark='<invoke name="', separator='">', key_mark='<parameter name="', key_end='">',
        value_end="</parameter>", call_end="</invoke>",
    ),
    CallStyle(
        name="seed-oss", kind="tags", signs=(("<seed:tool_call>",),),
        openers=("<seed:tool_call>",), closers=("</seed:tool_call>",), name_mark="<function=",
        separator=">", key_mark="<parameter=", value_end="</parameter>", call_end="</function>",
        is_padded=True,
    ),
    CallStyle(
        name="glm-4.5", kind="tags", signs=(("<arg_key>",),), openers=("<tool_call>",),
        closers=("</tool_call>",), separator="\n", key_mark="<arg_key>", key_end="</arg_key>",
        value_mark="<arg_value>", value_end="</arg_value>",
    ),
    CallStyle(
        name="qwen3-coder", kind="tags", signs=(("<function=", "<parameter="),),
        openers=("<tool_call>",), closers=("</tool_call>",), name_mark="<function=",
        separator=">", key_mark="<parameter=", value_end="</parameter>", call_end="</function>",
        is_padded=True,
    ),
    CallStyle(
        name="functionary-v3.1", kind="named", signs=(("<function=",),), name_mark="<function=",
        separator=">", closers=("</function>",),
    ),
    CallStyle(
        name="command-r7b", kind="json", signs=(("<|START_ACTION|>",),),
        openers=("<|START_ACTION|>",), closers=("<|END_ACTION|>",), is_list=True,
        keys=("tool_name", "parameters"),
    ),
    CallStyle(
        name="command-r", kind="json", signs=(("Action:", "```json", "tool_name"),),
        openers=("Action:", "```json"), closers=("```",), is_list=True,
        frame=("Action: ```json\n[", "", "", "]\n```"),
        keys=("tool_name", "parameters"),
    ),
    CallStyle(
        name="apertus", kind="json", signs=(("<|tools_prefix|>",),), openers=("<|tools_prefix|>",),
        closers=("<|tools_suffix|>",), is_list=True, keys=("", ""),
    ),
    CallStyle(
        name="gemma-4", kind="braces", signs=(("<|tool_call>",),), openers=("<|tool_call>",),
        closers=("<tool_call|>",), name_mark="call:", quote='<|"|>',
    ),
    CallStyle(
        name="functiongemma", kind="braces", signs=(("<start_function_call>",),),
        openers=("<start_function_call>",), closers=("<end_function_call>",), name_mark="call:",
        quote="<escape>",
    ),
    CallStyle(
        name="phi-4", kind="json", signs=(("<|tool_call|>", "<|/tool_call|>"), ("<|/tool|>",)),
        openers=("<|tool_call|>", "functools"), closers=("<|/tool_call|>",), is_list=True,
    ),
    CallStyle(
        name="granite-3", kind="json", signs=(("<|tool_call|>",),), openers=("<|tool_call|>",),
        is_list=True,
    ),
    CallStyle(
        name="granite-20b", kind="json", signs=(("<function_call>",),),
        openers=("<function_call>",), closers=("</function_call>",),
    ),
    CallStyle(
        name="internlm-2", kind="json", signs=(("<|action_start|>", "<|plugin|>"),),
        openers=("<|action_start|>", "<|plugin|>"), closers=("<|action_end|>",),
        frame=("", "<|action_start|><|plugin|>\n", "<|action_end|>", ""),
        keys=("name", "parameters"),
    ),
    CallStyle(
        name="longcat", kind="json", signs=(("<longcat_tool_call>",),),
        openers=("<longcat_tool_call>",), closers=("</longcat_tool_call>",),
    ),
    CallStyle(
        name="nemotron", kind="json", signs=(("<TOOLCALL>",),), openers=("<TOOLCALL>",),
        closers=("</TOOLCALL>",), is_list=True,
    ),
    CallStyle(
        name="jamba", kind="json", signs=(("<tool_calls>",),), openers=("<tool_calls>",),
        closers=("</tool_calls>",), is_list=True,
    ),
    CallStyle(
        name="gigachat-3", kind="json", signs=(("function call", "<|role_sep|>"),),
        openers=("function call<|role_sep|>", "<|message_sep|>\n\nfunction call<|role_sep|>"),
        frame=("", "function call<|role_sep|>\n", "", ""),
    ),
    CallStyle(
        name="lfm-2", kind="python", signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        openers=("<|tool_call_start|>",), closers=("<|tool_call_end|>",), is_list=True,
    ),
    CallStyle(
        name="olmo-3", kind="python", signs=(("<function_calls>",),),
        openers=("<function_calls>",), closers=("</function_calls>",),
        frame=("<function_calls>", "", "", "</function_calls>"),
    ),
    CallStyle(
        name="llama-4", kind="python", signs=(("<|python_start|>",),),
        openers=("<|python_start|>",), closers=("<|python_end|>",), is_bare=True, is_list=True,
    ),
    CallStyle(
        name="firefunction", kind="json", signs=(("functools[",),), openers=("functools",),
        is_list=True,
    ),
    CallStyle(
        name="hermes", kind="json", signs=(("<tool_call>",),), openers=("<tool_call>",),
        closers=("</tool_call>",), frame=("", "<tool_call>\n", "\n</tool_call>", ""),
        is_bare=True,
    ),
    CallStyle(
        name="mistral-args", kind="named", signs=(("[TOOL_CALLS]", "[ARGS]"),),
        openers=("[TOOL_CALLS]",), separator="[ARGS]", id_mark="[CALL_ID]", ids="short",
    ),
    CallStyle(
        name="mistral", kind="json", signs=(("[TOOL_CALLS]",),), openers=("[TOOL_CALLS]",),
        separator="[ARGS]", id_mark="[CALL_ID]", is_list=True, ids="short",
    ),
    CallStyle(
        name="xlam", kind="json", signs=(("xLAM",), ("xlam",)), openers=("```json",),
        closers=("```",), is_bare=True, is_list=True,
    ),
    CallStyle(
        name="llama-3", kind="json", signs=(("tools",),), openers=("<|python_tag|>",),
        is_bare=True, keys=("name", "parameters"),
    ),
)  # fmt: skip


def call_style(template: str | None, tokens: Collection[str] = ()) -> CallStyle | None:
    """Returns a model's tool call style.

    Args:
        template: the chat template.
        tokens: the special tokens; they decide if the template describes tools but not calls.

    Returns:
        The style; None if the template does not describe tools.
    """
    if not template or "tool" not in template:
        return None
    for style in CALL_STYLES[:-1]:
        if any(all(sign in template for sign in group) for group in style.signs):
            return style
    if "tools" not in template:
        return None
    for style in CALL_STYLES[:-1]:
        if any(all(sign in tokens for sign in group) for group in style.signs):
            return style
    return CALL_STYLES[-1]

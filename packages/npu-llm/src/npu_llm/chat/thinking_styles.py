"""Reasoning styles: a table of the marks around models' reasoning, and its lookup."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["THINKING_STYLES", "ThinkingStyle", "thinking_style"]


@dataclass(frozen=True, kw_only=True)
class ThinkingStyle:
    """One format of marked reasoning.

    Attributes:
        start: mark before it.
        end: mark after it.
        signs: strings that identify the style if one is in the chat template or is a token.
        frames: marks around the rest of the answer, which are not part of it.
        then: text between the end of the reasoning and a tool call.
        answer: text between the end of the reasoning and the answer; such answers always have
            reasoning, which may be empty.
    """

    start: str
    end: str
    signs: tuple[str, ...]
    frames: tuple[str, ...] = ()
    then: str = ""
    answer: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, some of which are special tokens."""
        return (self.start, self.end, *self.frames)

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt, or its end, ends with the mark before the reasoning."""
        return prompt.rstrip().endswith(self.start)


# Checked in this order.
THINKING_STYLES: tuple[ThinkingStyle, ...] = (
    ThinkingStyle(
        start="<|channel|>analysis<|message|>", end="<|end|>", signs=("<|channel|>analysis",),
        then="<|start|>assistant", answer="<|start|>assistant<|channel|>final<|message|>",
    ),
    ThinkingStyle(
        start="<|channel>thought", end="<channel|>", signs=("<|channel>thought", "<|channel>"),
    ),
    ThinkingStyle(
        start="<|open|>think<|sep|>", end="<|close|>think<|sep|>", signs=("<|open|>",),
        frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    ),
    ThinkingStyle(start="<seed:think>", end="</seed:think>", signs=("<seed:think>",)),
    ThinkingStyle(start="[THINK]", end="[/THINK]", signs=("[THINK]",)),
    ThinkingStyle(
        start="<|START_THINKING|>", end="<|END_THINKING|>", signs=("<|START_THINKING|>",),
        frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    ThinkingStyle(
        start="<|inner_prefix|>", end="<|inner_suffix|>", signs=("<|inner_prefix|>",),
    ),
    ThinkingStyle(start="◁think▷", end="◁/think▷", signs=("◁think▷",)),
    ThinkingStyle(start="<thought>", end="</thought>", signs=("<thought>",)),
    ThinkingStyle(
        start="Here is my thought process:", end="Here is my response:",
        signs=("Here is my thought process:", "Write the response after 'Here is my response:'"),
    ),
    ThinkingStyle(
        start="Here are my reasoning steps:", end="[BEGIN FINAL RESPONSE]",
        signs=("[BEGIN FINAL RESPONSE]",), frames=("[END FINAL RESPONSE]",),
    ),
    ThinkingStyle(
        start="<think>", end="</think>", signs=("</think>\\n<answer>", "</think>\n<answer>"),
        frames=("<answer>", "</answer>"),
    ),
    ThinkingStyle(
        start="<think>", end="</think>", signs=("<response>",), frames=("<response>", "</response>")
    ),
    ThinkingStyle(start="<think>", end="</think>", signs=("<think>", "</think>")),
)  # fmt: skip


def thinking_style(template: str | None, tokens: Collection[str] = ()) -> ThinkingStyle | None:
    """Returns a model's reasoning style.

    Args:
        template: the chat template.
        tokens: the special tokens; they decide if the template does not.

    Returns:
        The style; None for a model without reasoning.
    """
    for style in THINKING_STYLES:
        if template and any(sign in template for sign in style.signs):
            return style
    for style in THINKING_STYLES:
        if style.start in tokens and style.end in tokens:
            return style
    return None

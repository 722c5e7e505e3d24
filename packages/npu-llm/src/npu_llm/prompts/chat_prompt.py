"""Turns the messages of a conversation into tokens, by the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError

from npu_llm.errors import OptionError
from npu_llm.prompts.chat_template import bounded_templates
from npu_llm.prompts.unicode_text import check_text

if TYPE_CHECKING:
    from npu_llm.prompts.light_tokenizer import LightTokenizer

__all__ = ["Message", "common_length", "encode_chat", "encode_lightly"]

# Role, content, and whatever else a template uses: tool_calls, name, ...
Message = Mapping[str, Any]


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Turns a conversation into a model's inputs, so that what follows is an answer.

    Args:
        tokenizer: the model's; without a chat template the contents are joined, one per line.
        messages: oldest first.
        tools: functions or JSON schemas that the template describes to the model.
        template_options: other options of the template, such as `enable_thinking`.

    Returns:
        input_ids and attention_mask, each (1, tokens) int64.

    Raises:
        OptionError: [chat-template] when the template rejects the messages, [template-limit] when
            it takes too long or too much memory, [text-encoding] for text that is not Unicode.
    """
    for message in messages:
        check_text("messages", str(message.get("content")))
    if getattr(tokenizer, "chat_template", None):
        with _named_refusals(messages), bounded_templates():
            encoded = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else list(tools),
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
                **(template_options or {}),
            )
    else:
        encoded = tokenizer(_joined(messages), return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def encode_lightly(tokenizer: LightTokenizer, messages: Sequence[Message]) -> list[int]:
    """Returns the tokens that `encode_chat` makes of the messages, without transformers.

    Raises:
        OptionError: as `encode_chat` does.
    """
    for message in messages:
        check_text("messages", str(message.get("content")))
    if not tokenizer.chat_template:
        return tokenizer(_joined(messages))
    with _named_refusals(messages):
        return tokenizer.apply_chat_template(messages)


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(str(message.get("content") or "") for message in messages)


@contextmanager
def _named_refusals(messages: Sequence[Message]) -> Iterator[None]:
    try:
        yield
    except (TemplateError, RecursionError) as failure:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise OptionError(
            f"messages: must suit the model's chat template; got the roles {roles}, "
            f"and it says: {failure}. Change the messages, or omit the system message.",
            code="chat-template",
        ) from failure


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two sequences."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != other[index])

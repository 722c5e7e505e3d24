"""Turns the messages of a conversation into tokens, by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jinja2 import TemplateError

from npu_llm.chat.chat_template import bounded_templates
from npu_llm.chat.unicode_text import check_text
from npu_llm.errors import OptionError

__all__ = ["Message", "common_length", "encode_chat"]

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
        try:
            with bounded_templates():
                encoded = tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=None if tools is None else list(tools),
                    add_generation_prompt=True,
                    return_tensors="pt",
                    return_dict=True,
                    **(template_options or {}),
                )
        except (TemplateError, RecursionError) as failure:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise OptionError(
                f"messages: must suit the model's chat template; got the roles {roles}, "
                f"and it says: {failure}. Change the messages, or omit the system message.",
                code="chat-template",
            ) from failure
    else:
        lines = [str(message.get("content") or "") for message in messages]
        encoded = tokenizer("\n".join(lines), return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two sequences."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != other[index])

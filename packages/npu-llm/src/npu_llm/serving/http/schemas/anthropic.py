"""Anthropic's requests: the fields and bounds of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from npu_llm.serving.http.schemas.body import Body

__all__ = [
    "AnthropicCall",
    "AnthropicCountBody",
    "AnthropicImage",
    "AnthropicMessage",
    "AnthropicOutput",
    "AnthropicText",
    "MessagesBody",
]

_CACHED: dict[str, tuple[Any, ...] | None] = {"cache_control": None, "citations": None}


class AnthropicText(Body):
    """A text in a message."""

    type: Literal["text"]
    text: str
    without_effect = _CACHED


class _Source(Body):
    type: Literal["base64", "url"]
    media_type: str | None = Field(None, max_length=64)
    data: str | None = None
    url: str | None = None


class AnthropicImage(Body):
    """An image in a message."""

    type: Literal["image"]
    source: _Source
    without_effect = _CACHED

    @property
    def url(self) -> str:
        """The image's address, or the image as a data URL."""
        if self.source.type == "url":
            return self.source.url or ""
        return f"data:{self.source.media_type};base64,{self.source.data or ''}"


class AnthropicCall(Body):
    """A call of a tool in an assistant's message."""

    type: Literal["tool_use"]
    id: str = Field(max_length=256)
    name: str = Field(max_length=256)
    input: dict[str, Any]
    without_effect = {**_CACHED, "caller": None}


class AnthropicOutput(Body):
    """The output of a called tool in a user's message."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=256)
    content: str | list[AnthropicText | AnthropicImage] = ""
    is_error: bool = False
    without_effect = _CACHED


class AnthropicThinking(Body):
    """The reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    without_effect = {"signature": None}


class _Redacted(Body):
    type: Literal["redacted_thinking"]
    without_effect = {"data": None}


_Block = (
    AnthropicText | AnthropicImage | AnthropicCall | AnthropicOutput | AnthropicThinking | _Redacted
)


class AnthropicMessage(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[_Block], Field(max_length=4096)]


class AnthropicTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    without_effect = {
        **_CACHED, "strict": None, "eager_input_streaming": None, "defer_loading": None,
        "allowed_callers": None, "input_examples": None,
    }  # fmt: skip


class _Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, max_length=128)
    disable_parallel_tool_use: bool = False


class _Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)


class _JsonFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class _OutputConfig(Body):
    format: _JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class AnthropicCountBody(Body):
    """The body of /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[AnthropicMessage] = Field(min_length=1, max_length=4096)
    system: str | list[AnthropicText] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=128)] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    without_effect = {"metadata": None, "service_tier": None, "cache_control": None}


class MessagesBody(AnthropicCountBody):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool = False
    without_effect = {
        **AnthropicCountBody.without_effect, "container": (), "mcp_servers": ([],),
    }  # fmt: skip

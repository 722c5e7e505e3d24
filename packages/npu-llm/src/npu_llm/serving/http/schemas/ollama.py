"""Ollama's requests: the fields and bounds of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from npu_llm.serving.http.schemas.body import Body, Texts, Tokens
from npu_llm.serving.http.schemas.llama_cpp import LlamaOptions

__all__ = [
    "OllamaChatBody",
    "OllamaEmbedBody",
    "OllamaEmbeddingsBody",
    "OllamaGenerateBody",
    "OllamaMessage",
    "OllamaOptions",
    "OllamaShowBody",
]

_Images = Annotated[list[str], Field(max_length=64)]
_Format = Literal["", "json"] | dict[str, Any]


class OllamaOptions(LlamaOptions):
    """Options of an answer; options for loading a model have no effect."""

    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    num_predict: int | None = Field(None, ge=-2, lt=1 << 31)
    without_effect = dict.fromkeys(
        (
            "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa",
            "low_vram", "use_mmap", "use_mlock", "f16_kv", "vocab_only", "logits_all",
            "embedding_only", "penalize_newline", "repeat_last_n",
        )
    )  # fmt: skip


class _OllamaFunction(Body):
    name: str = Field(max_length=256)
    arguments: dict[str, Any]
    without_effect = {"index": None}


class _OllamaCall(Body):
    function: _OllamaFunction
    id: str | None = Field(None, max_length=256)
    without_effect = {"type": None}


class OllamaMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: _Images | None = None
    tool_calls: Annotated[list[_OllamaCall], Field(max_length=128)] | None = None
    tool_name: str | None = Field(None, max_length=256)
    tool_call_id: str | None = Field(None, max_length=256)


class OllamaFunction(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Body):
    """A tool."""

    type: Literal["function"] = "function"
    function: OllamaFunction


class _Answering(Body):
    model: str
    options: OllamaOptions | None = None
    format: _Format | None = None
    stream: bool = True
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    without_effect = {"keep_alive": None, "truncate": None, "shift": None}


class OllamaChatBody(_Answering):
    """The body of /api/chat."""

    messages: list[OllamaMessage] = Field(default_factory=list, max_length=4096)
    tools: Annotated[list[OllamaTool], Field(max_length=128)] | None = None


class OllamaGenerateBody(_Answering):
    """The body of /api/generate."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool = False
    images: _Images | None = None
    context: Tokens | None = Field(None, max_length=1 << 20)
    without_effect = {**_Answering.without_effect, "template": ("",)}


class OllamaEmbedBody(Body):
    """The body of /api/embed."""

    model: str
    input: str | Texts
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1)
    without_effect = {"keep_alive": None, "options": None}


class OllamaEmbeddingsBody(Body):
    """The body of /api/embeddings, the older form for one text."""

    model: str
    prompt: str
    without_effect = {"keep_alive": None, "options": None}


class OllamaShowBody(Body):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None
    without_effect = {"verbose": None}

"""OpenAI's schemas: the fields and bounds of each request, and the server's OpenAPI description."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import models_json_schema

__all__ = [
    "Body",
    "ChatBody",
    "ChatMessage",
    "CompletionBody",
    "EmbeddingsBody",
    "FormBody",
    "FunctionTool",
    "ResponsesBody",
    "SamplingBody",
    "StreamOptions",
    "TokenizeBody",
    "TranscriptionBody",
    "description",
]

_MAX_CHOICES = 32
_MAX_STOPS = 16
_Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Token = Annotated[int, Field(ge=0, lt=1 << 31)]
_Stop = Annotated[str, Field(min_length=1, max_length=1024)]


class Body(BaseModel):
    """A JSON object whose fields are all known.

    Attributes:
        without_effect: fields that may be given with a value that asks for nothing; None for any
            value. They are dropped.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    without_effect: ClassVar[dict[str, tuple[Any, ...] | None]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        left = {name: value for name, value in given.items() if value is not None}
        for name, values in cls.without_effect.items():
            if name in left and (values is None or left[name] in values):
                del left[name]
        return left


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    without_effect = {"include_obfuscation": (False,)}


class SamplingBody(Body):
    """Sampling options of a request."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, allow_inf_nan=False)
    logit_bias: dict[str, _Bias] | None = Field(None, max_length=1024)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    n: int = Field(1, ge=1, le=_MAX_CHOICES)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=_MAX_STOPS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    # Extensions that vLLM's clients know.
    ignore_eos: bool = False
    regex: str | None = Field(None, max_length=1 << 16)
    grammar: str | None = Field(None, max_length=1 << 20)


class ToolFunction(Body):
    """The function of a call: its arguments are JSON."""

    name: str = Field(max_length=256)
    arguments: str


class ToolCall(Body):
    """A call that the model asked for."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: ToolFunction


class TextPart(Body):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    without_effect = {"annotations": ([],), "logprobs": ([],)}


class ChatMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = Field(None, max_length=256)
    without_effect = {"refusal": ("",), "annotations": ([],), "audio": ()}

    @property
    def text(self) -> str:
        """The content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Function(Body):
    """A function that the model may ask to be called."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function


class _ChosenName(Body):
    name: str


class ChosenTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: _ChosenName


class JsonSchema(Body):
    """A schema that the answer must match."""

    name: str = Field("answer", max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(SamplingBody):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    without_effect = {
        "user": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "store": (False,),
        "metadata": None,
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
        "functions": ([],),
    }


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    without_effect = {"user": None, "best_of": (1,), "suffix": ("",)}


class ResponseItem(ChatMessage):
    """A message in the input of /v1/responses."""

    without_effect = {**ChatMessage.without_effect, "type": ("message",), "id": None,
                      "status": ("completed",)}  # fmt: skip


class ResponsesBody(Body):
    """The body of /v1/responses: text only, and nothing is stored."""

    model: str | None = None
    input: str | Annotated[list[ResponseItem], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    without_effect = {
        "user": None,
        "metadata": None,
        "store": (False,),
        "background": (False,),
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
        "tools": ([],),
        "include": ([],),
        "text": ({"format": {"type": "text"}},),
    }


class EmbeddingsBody(Body):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: str | list[str] | list[_Token] | list[list[_Token]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    without_effect = {"user": None}


class TokenizeBody(Body):
    """The body of /tokenize: a prompt, or messages."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}
    )

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=4096)
    add_special_tokens: bool = True


class FormBody(Body):
    """The fields of a form, which are text, beside its file."""


class TranscriptionBody(FormBody):
    """The form of /v1/audio/transcriptions."""

    model: str | None = None
    language: str | None = Field(None, max_length=64)
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    granularities: list[Literal["word", "segment"]] | None = Field(
        None, alias="timestamp_granularities[]", max_length=2
    )
    without_effect = {
        "stream": ("false", "False"),
        "prompt": ("",),
        "chunking_strategy": ("auto",),
    }


_BODIES: Mapping[str, tuple[type[Body], str]] = {
    "/tokenize": (TokenizeBody, "The tokens of a text or a conversation."),
    "/v1/audio/transcriptions": (TranscriptionBody, "What is said in a WAV file."),
    "/v1/chat/completions": (ChatBody, "Answers to a conversation."),
    "/v1/completions": (CompletionBody, "What follows texts or tokens."),
    "/v1/embeddings": (EmbeddingsBody, "Vectors of texts."),
    "/v1/responses": (ResponsesBody, "An answer, in the newer form; nothing is stored."),
}
_FACTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "/": ("A page to try it.", ("text/html",)),
    "/health": ("Whether it runs.", ("application/json",)),
    "/metrics": ("Figures for Prometheus.", ("text/plain",)),
    "/openapi.json": ("This description.", ("application/json",)),
    "/v1/models": ("The models.", ("application/json",)),
    "/v1/models/{name}": ("One model.", ("application/json",)),
}
_WITHOUT_KEY = ("/", "/health")
_STREAMED = (ChatBody, CompletionBody, ResponsesBody)
_PLACE = "#/components/schemas/"
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


@functools.cache
def description() -> dict[str, Any]:
    """Returns the description; not to be changed."""
    names, found = models_json_schema(
        [(body, "validation") for body, _ in _BODIES.values()], ref_template=_PLACE + "{model}"
    )
    schemas = {**found["$defs"], "Error": _ERROR}
    paths: dict[str, Any] = {}
    for path, (what, kinds) in _FACTS.items():
        paths[path] = {"get": _operation(path, what, kinds)}
    for path, (body, what) in _BODIES.items():
        kinds = ("application/json",)
        if body in _STREAMED:
            kinds += ("text/event-stream",)
        if issubclass(body, FormBody):
            kinds += ("text/plain",)
        content = _content(body, names[(body, "validation")])
        asked = {"required": True, "content": content}
        paths[path] = {"post": {**_operation(path, what, kinds), "requestBody": asked}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "npu-llm serve", "version": metadata.version("npu-llm")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, what: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": f"{_PLACE}Error"}}}
    found: dict[str, Any] = {
        "summary": what,
        "responses": {
            "200": {"description": "Done.", "content": {kind: {} for kind in kinds}},
            "default": {"description": "Refused, or failed.", "content": refused},
        },
    }
    if "{name}" in path:
        place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        found["parameters"] = [place]
    if path not in _WITHOUT_KEY:
        found["security"] = [{}, {"key": []}]  # without one where the server asks for none
    return found


def _content(body: type[Body], schema: Any) -> dict[str, Any]:
    """Returns what a request contains: JSON, or a form with a file."""
    if not issubclass(body, FormBody):
        return {"application/json": {"schema": schema}}
    fields = body.model_json_schema(ref_template=_PLACE + "{model}")
    fields["properties"]["file"] = {"type": "string", "contentMediaType": "audio/wav"}
    fields["required"] = ["file", *fields.get("required", ())]
    return {"multipart/form-data": {"schema": fields}}

"""OpenAI's requests: the fields and bounds of each, with extensions of vLLM's clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from npu_llm.serving.http.schemas.body import Body, FormBody, Texts, Token, TokenLists, Tokens

__all__ = [
    "AudioPart",
    "ChatBody",
    "ChatMessage",
    "ChosenTool",
    "CompletionBody",
    "DetokenizeBody",
    "EmbeddingsBody",
    "FunctionTool",
    "ImagePart",
    "Reasoning",
    "RerankBody",
    "ResponsesBody",
    "ResponsesCall",
    "ResponsesMessage",
    "ResponsesOutput",
    "ResponsesTool",
    "SamplingBody",
    "ScoreBody",
    "StreamOptions",
    "TextPart",
    "TokenizeBody",
    "TranscriptionBody",
]

_MAX_CHOICES = 32
_MAX_STOPS = 16
_Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Stop = Annotated[str, Field(min_length=1, max_length=1024)]


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    without_effect = {"include_obfuscation": (False,)}


class StructuredOutputs(Body):
    """The form of an answer, as vLLM's clients send it; exactly one field is set."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = Field(None, max_length=1 << 16)
    choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    grammar: str | None = Field(None, max_length=1 << 20)


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


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
    # Extensions of vLLM's clients.
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    stop_token_ids: Annotated[list[Token], Field(max_length=1024)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    cache_prompt: bool = True  # llama.cpp's
    regex: str | None = Field(None, max_length=1 << 16)
    grammar: str | None = Field(None, max_length=1 << 20)
    structured_outputs: StructuredOutputs | None = None


class ToolFunction(Body):
    """The function of a call: arguments are JSON text."""

    name: str = Field(max_length=256)
    arguments: str


class ToolCall(Body):
    """A tool call in the model's answer."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: ToolFunction


class TextPart(Body):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    without_effect = {"annotations": ([],), "logprobs": ([],)}


class _Url(Body):
    url: str
    detail: str | None = None


class ImagePart(Body):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: _Url | str

    @property
    def url(self) -> str:
        """The image's address, or the image as a data URL."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class _Sound(Body):
    data: str
    format: str | None = Field(None, max_length=16)


class AudioPart(Body):
    """A sound in a message."""

    type: Literal["input_audio"]
    input_audio: _Sound


class ChatMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart | AudioPart] | None = None
    reasoning_content: str | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = Field(None, max_length=256)
    without_effect = {"refusal": ("",), "annotations": ([],), "audio": ()}


class Function(Body):
    """A function that the model may call."""

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


class Reasoning(Body):
    """The reasoning effort."""

    effort: Effort | None = None
    max_tokens: int | None = Field(None, ge=0)
    enabled: bool | None = None
    without_effect = {"summary": None, "generate_summary": None, "exclude": (False,)}


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
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking_budget: int | None = Field(None, ge=0)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    without_effect = {
        "audio": (),
        "function_call": (),
        "web_search_options": (),
        "user": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "store": (False,),
        "metadata": None,
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
        "functions": ([],),
    }

    @property
    def effort(self) -> str | bool | None:
        """The reasoning effort, from whichever field sets it."""
        if self.reasoning_effort is not None or self.reasoning is None:
            return self.reasoning_effort
        return self.reasoning.enabled if self.reasoning.effort is None else self.reasoning.effort

    @property
    def budget(self) -> int | None:
        """Maximum number of reasoning tokens, from whichever field sets it."""
        if self.thinking_budget is not None or self.reasoning is None:
            return self.thinking_budget
        return self.reasoning.max_tokens


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    prompt: str | Texts | Tokens | TokenLists
    suffix: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    best_of: int | None = Field(None, ge=1, le=_MAX_CHOICES)
    add_special_tokens: bool = True
    without_effect = {"user": None}


class _InputImage(Body):
    type: Literal["input_image"]
    image_url: str
    detail: str | None = None

    @property
    def url(self) -> str:
        """The image's address, or the image as a data URL."""
        return self.image_url


class ResponsesMessage(Body):
    """A message in the input of /v1/responses."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart | _InputImage | AudioPart]
    without_effect = {"id": None, "status": None}


class ResponsesCall(Body):
    """A function call in the input of /v1/responses."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: str = Field(max_length=256)
    arguments: str
    without_effect = {"id": None, "status": None}


class ResponsesOutput(Body):
    """The output of a function call in the input of /v1/responses."""

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: str | list[TextPart]
    without_effect = {"id": None, "status": None}


class ResponsesReasoning(Body):
    """The reasoning of an earlier answer in the input of /v1/responses, which is ignored."""

    type: Literal["reasoning"]
    without_effect = {
        "id": None, "status": None, "summary": None, "content": None, "encrypted_content": None
    }  # fmt: skip


class ResponsesTool(Body):
    """A function that an answer to /v1/responses may call."""

    type: Literal["function"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _ChosenFunction(Body):
    type: Literal["function"]
    name: str


class _TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class _TextOptions(Body):
    format: _TextFormat | None = None


_Item = ResponsesMessage | ResponsesCall | ResponsesOutput | ResponsesReasoning


class ResponsesBody(Body):
    """The body of /v1/responses: nothing is stored."""

    model: str | None = None
    input: str | Annotated[list[_Item], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    max_output_tokens: int | None = Field(None, ge=1)
    tools: list[ResponsesTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | _ChosenFunction | None = None
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    text: _TextOptions | None = None
    stream: bool = False
    without_effect = {
        "user": None,
        "metadata": None,
        "prompt_cache_key": None,
        "safety_identifier": None,
        "store": (False,),
        "background": (False,),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
    }


_Texts = Annotated[list[str], Field(max_length=2048)]


class RerankBody(Body):
    """The body of /rerank, as Jina's and Cohere's clients send it."""

    model: str | None = None
    query: str
    documents: _Texts | Annotated[list[TextDocument], Field(max_length=2048)]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = True
    without_effect = {"user": None}


class TextDocument(Body):
    """A document as an object."""

    text: str


class ScoreBody(Body):
    """The body of /score, as vLLM's clients send it: pairs, or one text with several."""

    model: str | None = None
    text_1: str | _Texts
    text_2: str | _Texts
    without_effect = {"user": None}


class EmbeddingsBody(Body):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: str | Texts | Tokens | TokenLists
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    without_effect = {"user": None}


class TokenizeBody(Body):
    """The body of /tokenize: a prompt, or messages."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [name]} for name in ("prompt", "content", "messages")]
        }
    )

    model: str | None = None
    prompt: str | None = None
    content: str | None = None  # llama.cpp's name for it
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=4096)
    add_special_tokens: bool = True
    add_special: bool = False  # llama.cpp's, of `content`
    with_pieces: bool = False
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """The body of /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Token], Field(max_length=1 << 20)]


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

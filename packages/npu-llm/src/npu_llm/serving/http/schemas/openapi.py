"""The server's OpenAPI description, generated from the request schemas."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from pydantic.json_schema import models_json_schema

from npu_llm.serving.http.schemas import anthropic, llama_cpp, ollama, openai
from npu_llm.serving.http.schemas.body import Body, FormBody

__all__ = ["description"]

_BODIES: Mapping[str, tuple[type[Body], str]] = {
    "/api/chat": (ollama.OllamaChatBody, "Answers a conversation, as in Ollama."),
    "/api/embed": (ollama.OllamaEmbedBody, "Embeddings of texts, as in Ollama."),
    "/api/embeddings": (ollama.OllamaEmbeddingsBody, "The embedding of a text, in an older form."),
    "/api/generate": (ollama.OllamaGenerateBody, "Answers a prompt, as in Ollama."),
    "/api/show": (ollama.OllamaShowBody, "Describes a model, as in Ollama."),
    "/completion": (llama_cpp.LlamaCompletionBody, "Continues a text, as in llama.cpp."),
    "/detokenize": (openai.DetokenizeBody, "The text of tokens."),
    "/infill": (llama_cpp.InfillBody, "Fills in text between two parts, as in llama.cpp."),
    "/rerank": (openai.RerankBody, "Ranks documents by relevance to a query."),
    "/score": (openai.ScoreBody, "Similarity scores of pairs of texts."),
    "/tokenize": (openai.TokenizeBody, "The tokens of a text or a conversation."),
    "/v1/audio/transcriptions": (openai.TranscriptionBody, "Transcribes a WAV file."),
    "/v1/chat/completions": (openai.ChatBody, "Answers a conversation."),
    "/v1/completions": (openai.CompletionBody, "Continues texts or tokens."),
    "/v1/embeddings": (openai.EmbeddingsBody, "Embeddings of texts."),
    "/v1/messages": (anthropic.MessagesBody, "Answers a conversation, as in Anthropic's API."),
    "/v1/messages/count_tokens": (
        anthropic.AnthropicCountBody, "Counts a conversation's tokens, as in Anthropic's API.",
    ),
    "/v1/rerank": (openai.RerankBody, "As /rerank."),
    "/v1/responses": (
        openai.ResponsesBody, "Answers in the newer API; nothing is stored.",
    ),
    "/v1/score": (openai.ScoreBody, "As /score."),
}  # fmt: skip
_FACTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "/": ("A web page to try the server.", ("text/html",)),
    "/api/ps": ("The models in memory, as in Ollama.", ("application/json",)),
    "/api/tags": ("The models, as in Ollama.", ("application/json",)),
    "/api/version": ("The version of Ollama's API.", ("application/json",)),
    "/health": ("The server's health.", ("application/json",)),
    "/metrics": ("Metrics for Prometheus.", ("text/plain",)),
    "/openapi.json": ("This description.", ("application/json",)),
    "/props": ("The first model and its settings, as in llama.cpp.", ("application/json",)),
    "/tokenizer_info": ("The first model's tokenizer, as in vLLM.", ("application/json",)),
    "/v1/models": ("The models.", ("application/json",)),
    "/v1/models/{name}": ("One model.", ("application/json",)),
    "/version": ("The version.", ("application/json",)),
}
_WITHOUT_KEY = ("/", "/health")
_STREAMED = (
    anthropic.MessagesBody,
    llama_cpp.LlamaSamplingBody,
    openai.ChatBody,
    openai.CompletionBody,
    openai.ResponsesBody,
)
_LINES = (ollama.OllamaChatBody, ollama.OllamaGenerateBody)
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
    """Returns the description; do not modify it."""
    names, found = models_json_schema(
        [(body, "validation") for body, _ in _BODIES.values()], ref_template=_PLACE + "{model}"
    )
    schemas = {**found["$defs"], "Error": _ERROR}
    paths: dict[str, Any] = {}
    for path, (what, kinds) in _FACTS.items():
        paths[path] = {"get": _operation(path, what, kinds)}
    for path, (body, what) in _BODIES.items():
        kinds = ("application/json",)
        if issubclass(body, _STREAMED):
            kinds += ("text/event-stream",)
        if issubclass(body, _LINES):
            kinds += ("application/x-ndjson",)
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
            "default": {"description": "Rejected, or failed.", "content": refused},
        },
    }
    if "{name}" in path:
        place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        found["parameters"] = [place]
    if path not in _WITHOUT_KEY:
        found["security"] = [{}, {"key": []}]  # empty if the server requires none
    return found


def _content(body: type[Body], schema: Any) -> dict[str, Any]:
    """Returns the content type of a request: JSON, or a form with a file."""
    if not issubclass(body, FormBody):
        return {"application/json": {"schema": schema}}
    fields = body.model_json_schema(ref_template=_PLACE + "{model}")
    fields["properties"]["file"] = {"type": "string", "contentMediaType": "audio/wav"}
    fields["required"] = ["file", *fields.get("required", ())]
    return {"multipart/form-data": {"schema": fields}}

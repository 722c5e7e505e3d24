"""The server's OpenAPI description, made from the schemas of its requests."""

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
    "/api/chat": (ollama.OllamaChatBody, "Answers to a conversation, as Ollama."),
    "/api/embed": (ollama.OllamaEmbedBody, "Vectors of texts, as Ollama."),
    "/api/embeddings": (ollama.OllamaEmbeddingsBody, "The vector of a text, as Ollama once."),
    "/api/generate": (ollama.OllamaGenerateBody, "An answer to a prompt, as Ollama."),
    "/api/show": (ollama.OllamaShowBody, "A model, as Ollama."),
    "/completion": (llama_cpp.LlamaCompletionBody, "What follows a text, as llama.cpp."),
    "/detokenize": (openai.DetokenizeBody, "The text of tokens."),
    "/infill": (llama_cpp.InfillBody, "The text between two, as llama.cpp."),
    "/rerank": (openai.RerankBody, "Documents by how well they answer a query."),
    "/score": (openai.ScoreBody, "How well pairs of texts fit together."),
    "/tokenize": (openai.TokenizeBody, "The tokens of a text or a conversation."),
    "/v1/audio/transcriptions": (openai.TranscriptionBody, "What is said in a WAV file."),
    "/v1/chat/completions": (openai.ChatBody, "Answers to a conversation."),
    "/v1/completions": (openai.CompletionBody, "What follows texts or tokens."),
    "/v1/embeddings": (openai.EmbeddingsBody, "Vectors of texts."),
    "/v1/messages": (anthropic.MessagesBody, "An answer to a conversation, as Anthropic."),
    "/v1/messages/count_tokens": (
        anthropic.AnthropicCountBody, "The number of a conversation's tokens, as Anthropic.",
    ),
    "/v1/rerank": (openai.RerankBody, "As /rerank."),
    "/v1/responses": (
        openai.ResponsesBody, "An answer, in the newer form; nothing is stored.",
    ),
    "/v1/score": (openai.ScoreBody, "As /score."),
}  # fmt: skip
_FACTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "/": ("A page to try it.", ("text/html",)),
    "/api/ps": ("The models in memory, as Ollama.", ("application/json",)),
    "/api/tags": ("The models, as Ollama.", ("application/json",)),
    "/api/version": ("The version of Ollama's interface.", ("application/json",)),
    "/health": ("Whether it runs.", ("application/json",)),
    "/metrics": ("Figures for Prometheus.", ("text/plain",)),
    "/openapi.json": ("This description.", ("application/json",)),
    "/props": ("The first model and its settings, as llama.cpp.", ("application/json",)),
    "/tokenizer_info": ("The first model's tokenizer, as vLLM.", ("application/json",)),
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
            "default": {"description": "Refused, or failed.", "content": refused},
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

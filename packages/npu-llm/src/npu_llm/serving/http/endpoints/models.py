"""The server's models, health, version, metrics and API description, and tokenization."""

from __future__ import annotations

from importlib import metadata, resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from npu_llm.serving.http.endpoints.fields import messages_of
from npu_llm.serving.http.endpoints.logprobs import token_text
from npu_llm.serving.http.schemas.openai import TokenizeBody
from npu_llm.serving.http.schemas.openapi import description
from npu_llm.serving.http.service import Service, service_of
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError

__all__ = [
    "health",
    "metrics",
    "model",
    "models",
    "openapi",
    "page",
    "tokenize",
    "tokenizer_info",
    "version",
]

# The page may only connect to its server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


async def health(request: Request) -> Response:
    """Returns the server's state and the models in memory."""
    loaded = service_of(request).registry.loaded
    is_well = all(served.is_alive for served in loaded.values())
    content = {"status": "ok" if is_well else "failed", "loaded": sorted(loaded)}
    return JSONResponse(content, status_code=200 if is_well else 503)


async def models(request: Request) -> Response:
    """Lists the models."""
    service = service_of(request)
    found = [_described(service, name) for name in service.registry.names]
    return JSONResponse({"object": "list", "data": found})


async def model(request: Request) -> Response:
    """Describes a model."""
    service = service_of(request)
    return JSONResponse(_described(service, service.registry.check(request.path_params["name"])))


async def metrics(request: Request) -> Response:
    """Returns metrics in Prometheus's format."""
    return Response(
        service_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


async def openapi(_: Request) -> Response:
    """Returns the OpenAPI description."""
    return JSONResponse(description())


async def tokenize(request: Request) -> Response:
    """Returns the tokens of a text or a conversation."""
    service = service_of(request)
    body = await service.read(request, TokenizeBody)
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(
            "`prompt`, `content` or `messages` must be the only one present, got "
            f"{' and '.join(given) or 'none'}. Pass one.",
            code="request-field",
            parameter="prompt",
        )
    async with service.registry.use(body.model, ServedModel) as served:
        if body.content is not None:
            tokens = await served.encode(body.content, special=body.add_special)
        elif body.prompt is not None:
            tokens = await served.encode(body.prompt, special=body.add_special_tokens)
        else:
            tokens = await served.encode_chat(messages_of(body.messages or ()))
        found: dict[str, Any] = {"tokens": tokens}
        if body.content is None:
            found |= {"count": len(tokens), "max_model_len": served.context_length}
        if body.return_token_strs:
            found["token_strs"] = [token_text(served, token) for token in tokens]
        if body.with_pieces:
            found["tokens"] = [{"id": token, "piece": _piece(served, token)} for token in tokens]
        return JSONResponse(found)


async def tokenizer_info(request: Request) -> Response:
    """Describes the tokenizer of the first language model, as vLLM does."""
    async with service_of(request).registry.use(None, ServedModel) as served:
        names = dict.fromkeys(("bos_token", "eos_token", "pad_token"))
        about = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
        about |= served.tokenizer.named_tokens
        about["chat_template"] = served.tokenizer.chat_template
        return JSONResponse(about | {"model_max_length": served.context_length})


async def version(_: Request) -> Response:
    """Returns the version of npu-llm."""
    return JSONResponse({"version": metadata.version("npu-llm")})


async def page(request: Request) -> Response:
    """Returns the web page, or the text that Ollama's clients expect if HTML is not accepted."""
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("Ollama is running")
    text = resources.files("npu_llm.serving.page").joinpath("page.html").read_text("utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})


def _piece(served: ServedModel, token: int) -> str | list[int]:
    """Returns the text of a token, or the bytes of a partial character."""
    content = served.token_bytes.of(token)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)


def _described(service: Service, name: str) -> dict[str, Any]:
    served = service.registry.loaded.get(name)
    known = None if served is None else served.context_length
    about = {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "npu-llm",
        "max_model_len": known,
    }
    parent = service.registry.parents.get(name)
    return about if parent is None else {**about, "parent": parent}

"""The server's models, state, metrics and description, and the tokens of a text."""

from __future__ import annotations

from importlib import resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from npu_llm.serving.http.endpoints.sampling import messages_of
from npu_llm.serving.http.errors import RequestError
from npu_llm.serving.http.schemas import TokenizeBody, description
from npu_llm.serving.http.service import Service, service_of
from npu_llm.serving.models.served_model import ServedModel

__all__ = ["health", "metrics", "model", "models", "openapi", "page", "tokenize"]

# What the page may do: nothing but talk to its own server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


async def health(request: Request) -> Response:
    """Tells whether it runs, and which models are in memory."""
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
    """Tells about one model."""
    service = service_of(request)
    return JSONResponse(_described(service, service.registry.check(request.path_params["name"])))


async def metrics(request: Request) -> Response:
    """Tells the figures, as Prometheus reads them."""
    return Response(
        service_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


async def openapi(_: Request) -> Response:
    """Tells the paths and what each takes, in OpenAPI's form."""
    return JSONResponse(description())


async def tokenize(request: Request) -> Response:
    """Tells the tokens of a text or a conversation."""
    service = service_of(request)
    body = await service.read(request, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError(
            "prompt: must be there, or messages, and not both; got "
            f"{'neither' if body.prompt is None else 'both'}. Pass one.",
            code="request-field",
            parameter="prompt",
        )
    async with service.registry.use(body.model, ServedModel) as served:
        if body.prompt is not None:
            tokens = await served.encode(body.prompt, special=body.add_special_tokens)
        else:
            tokens = await served.encode_chat(messages_of(body.messages or ()))
        return JSONResponse(
            {"tokens": tokens, "count": len(tokens), "max_model_len": served.context_length}
        )


async def page(_: Request) -> Response:
    """Returns the page to try it."""
    text = resources.files("npu_llm.serving.page").joinpath("page.html").read_text("utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})


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

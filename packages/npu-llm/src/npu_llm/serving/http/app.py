"""The ASGI application: endpoints behind the middleware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from npu_llm.errors import ModelError
from npu_llm.serving.http.endpoints import anthropic, llama_cpp, models, ollama
from npu_llm.serving.http.endpoints.chat import chat_completions
from npu_llm.serving.http.endpoints.completions import completions
from npu_llm.serving.http.endpoints.responses import responses
from npu_llm.serving.http.endpoints.tasks import embeddings, rerank, score, transcriptions
from npu_llm.serving.http.errors import error_response, protocol_of
from npu_llm.serving.http.middleware import LOG, Middleware, Traces
from npu_llm.serving.http.service import Service
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry
from npu_llm.serving.request_error import RequestError
from npu_runtime.errors import NpuError

__all__ = ["PATHS", "make_app"]

Endpoint = Callable[[Request], Awaitable[Response]]

_GET: Mapping[str, Endpoint] = {
    "/": models.page,
    "/api/ps": ollama.ps,
    "/api/tags": ollama.tags,
    "/api/version": ollama.version,
    "/health": models.health,
    "/metrics": models.metrics,
    "/openapi.json": models.openapi,
    "/props": llama_cpp.props,
    "/tokenizer_info": models.tokenizer_info,
    "/v1/models": models.models,
    "/v1/models/{name:path}": models.model,
    "/version": models.version,
}
_POST: Mapping[str, Endpoint] = {
    "/api/chat": ollama.chat,
    "/api/embed": ollama.embed_texts,
    "/api/embeddings": ollama.embeddings,
    "/api/generate": ollama.generate,
    "/api/show": ollama.show,
    "/completion": llama_cpp.completion,
    "/detokenize": llama_cpp.detokenize,
    "/infill": llama_cpp.infill,
    "/rerank": rerank,
    "/score": score,
    "/tokenize": models.tokenize,
    "/v1/audio/transcriptions": transcriptions,
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/messages": anthropic.messages,
    "/v1/messages/count_tokens": anthropic.count_tokens,
    "/v1/rerank": rerank,
    "/v1/responses": responses,
    "/v1/score": score,
}
# The method of each path.
PATHS: Mapping[str, str] = dict.fromkeys(_GET, "GET") | dict.fromkeys(_POST, "POST")


def make_app(registry: ModelRegistry, settings: Settings, traces: Traces | None = None) -> ASGIApp:
    """Returns the application.

    Args:
        registry: the models; closed when the application ends.
        settings: address, key and limits.
        traces: spans of requests; closed when the application ends.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        unloading = asyncio.create_task(registry.unload_idle())
        try:
            yield
        finally:
            unloading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await unloading
            await registry.close(grace_s=0.0)  # the grace period is over
            if traces is not None:
                await asyncio.to_thread(traces.close)

    routes = [
        *(Route(path, _with_errors(endpoint)) for path, endpoint in _GET.items()),
        *(
            Route(path, _with_errors(endpoint), methods=["POST"])
            for path, endpoint in _POST.items()
        ),
    ]
    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _not_found}
    )
    app.state.service = Service(registry, settings)
    guarded = Middleware(app, settings, traces)
    if not settings.cors_origins:
        return guarded
    # Outermost, because a browser's CORS preflight has no key.
    return CORSMiddleware(
        guarded,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "x-ignored-fields"),
    )


def _with_errors(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that converts exceptions to errors in its protocol's form."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except NpuError as error:
            return error_response(error, protocol_of(request.url.path))
        except ClientDisconnect:
            return Response(status_code=499)  # the client has left
        except Exception as failure:  # noqa: BLE001  # a request must not end the server
            notes = {"request": request.scope.get("npu_llm.request")}
            LOG.exception("a request failed", extra={"notes": notes})
            return error_response(failure, protocol_of(request.url.path))

    return respond


async def _not_found(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException), "it is registered for these"
    path = request.url.path[:200]
    error: NpuError
    if failure.status_code == 405:
        allowed = (failure.headers or {}).get("Allow", "")
        error = RequestError(
            f"{request.method} `{path}` must be a method of this path, got another. Use {allowed}.",
            code="request-method",
        )
        return error_response(error, protocol_of(path), headers={"Allow": allowed})
    error = ModelError(
        f"{request.method} `{path}` must be an endpoint of this server, got another. Endpoints: "
        f"{', '.join(sorted((*_GET, *_POST)))}.",
        code="unknown-path",
    )
    response = error_response(error, protocol_of(path))
    response.status_code = failure.status_code
    return response

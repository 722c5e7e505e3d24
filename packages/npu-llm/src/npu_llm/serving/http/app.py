"""The ASGI application: endpoints behind the middleware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from npu_llm.errors import ModelError
from npu_llm.serving.http.endpoints import models
from npu_llm.serving.http.endpoints.chat import chat_completions, responses
from npu_llm.serving.http.endpoints.completions import completions
from npu_llm.serving.http.endpoints.tasks import embeddings, transcriptions
from npu_llm.serving.http.errors import error_response
from npu_llm.serving.http.middleware import LOG, Middleware, Traces
from npu_llm.serving.http.service import Service
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry
from npu_runtime.errors import NpuError

__all__ = ["PATHS", "make_app"]

Endpoint = Callable[[Request], Awaitable[Response]]

_GET: Mapping[str, Endpoint] = {
    "/": models.page,
    "/health": models.health,
    "/metrics": models.metrics,
    "/openapi.json": models.openapi,
    "/v1/models": models.models,
    "/v1/models/{name:path}": models.model,
}
_POST: Mapping[str, Endpoint] = {
    "/tokenize": models.tokenize,
    "/v1/audio/transcriptions": transcriptions,
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/responses": responses,
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
    return Middleware(app, settings, traces)


def _with_errors(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that responds to exceptions with errors of OpenAI's form."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except NpuError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)  # the client has left
        except Exception as failure:  # noqa: BLE001  # a request must not end the server
            notes = {"request": request.scope.get("npu_llm.request")}
            LOG.exception("a request failed", extra={"notes": notes})
            return error_response(failure)

    return respond


async def _not_found(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException), "it is registered for these"
    path = request.url.path[:200]
    error = ModelError(
        f"{request.method} {path}: must be an endpoint of this server; got another. Endpoints: "
        f"{', '.join(sorted((*_GET, *_POST)))}.",
        code="unknown-path",
    )
    response = error_response(error)
    response.status_code = failure.status_code
    return response

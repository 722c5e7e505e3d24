"""The uvicorn server, which runs the application until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from npu_command.interpreter import freeze_objects
from npu_llm.errors import ServerError
from npu_llm.serving.http.app import make_app
from npu_llm.serving.http.middleware import LOG, JsonLines, Traces
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry

__all__ = ["Server", "protocol_with_header_timeout", "run"]

_ENDING = (signal.SIGINT, signal.SIGTERM)
_FLUSH_S = 5.0  # for the last events to reach their clients


class Server(uvicorn.Server):
    """A server that returns after SIGINT or SIGTERM instead of raising the signal again.

    Answers continue for the grace period. The remaining ones end with an error event before their
    connections close.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        registry: ModelRegistry,
        *,
        grace_s: float,
        on_start: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Creates the server.

        Args:
            config: uvicorn's configuration; timeout_graceful_shutdown is set.
            registry: the models, closed after the grace period.
            grace_s: grace period in seconds.
            on_start: called with the port once the server listens.
        """
        super().__init__(config)
        config.timeout_graceful_shutdown = math.ceil(grace_s + _FLUSH_S)
        self._registry = registry
        self._grace_s = grace_s
        self._on_start = on_start

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Stops listening, and ends the remaining answers after the grace period."""
        ending = asyncio.create_task(self._end_models())
        try:
            await super().shutdown(sockets)  # type: ignore[arg-type]
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    async def _end_models(self) -> None:
        await asyncio.sleep(self._grace_s)
        await self._registry.close(grace_s=0.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGINT and SIGTERM: the first starts the grace period, the second ends it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self._end) for one in _ENDING}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listens, and calls `on_start`."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            address = self.servers[0].sockets[0].getsockname()
            self._on_start(address[1] if isinstance(address, tuple) else 0)

    def _end(self, _: int, __: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def run(registry: ModelRegistry, settings: Settings, *, on_start: Callable[[int], None]) -> None:
    """Serves until SIGTERM or SIGINT, then waits for answers for the grace period.

    Args:
        registry: the models.
        settings: the server's settings.
        on_start: called with the port once the server listens (the system's choice for port 0; 0
            for a Unix socket).

    Raises:
        ServerError: [server-port] if it cannot listen.
        OptionError: [traces-endpoint], [missing-otel].
    """
    traces = None if settings.traces_to is None else Traces.to(settings.traces_to)
    _log_to_standard_error(settings)
    config = uvicorn.Config(
        make_app(registry, settings, traces),
        host=settings.host.strip("[]"),
        port=settings.port,
        uds=settings.uds,
        http=protocol_with_header_timeout(settings.header_timeout_s),
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = Server(config, registry, grace_s=settings.grace_s, on_start=on_start)
    freeze_objects()
    try:
        server.run()
    except SystemExit as failure:  # uvicorn exits if it cannot listen
        raise _cannot_listen(settings) from failure
    if not server.started:
        raise _cannot_listen(settings)


def _cannot_listen(settings: Settings) -> ServerError:
    place = settings.uds or f"{settings.host}:{settings.port}"
    return ServerError(
        f"`server` must be able to listen on {place}, got a refusal of the system. Stop another "
        "server there, or pass another --port.",
        code="server-port",
    )


def _log_to_standard_error(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    for name in ("uvicorn", "uvicorn.error"):
        other = logging.getLogger(name)
        other.handlers[:] = [handler]
        other.setLevel(logging.WARNING)
        other.propagate = False


_ANSWER = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def protocol_with_header_timeout(seconds: float) -> type[H11Protocol]:
    """Returns uvicorn's protocol with a time limit for a request's line and headers.

    uvicorn limits the size of an incomplete head and the idle time after an answer, but not the
    time that the head of a request takes. Each such connection would hold a file descriptor
    forever.

    Args:
        seconds: time limit from the connection, or from the first byte after an answer, to the end
            of the head.
    """

    class HeaderTimeout(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._await_head()
            else:
                self._forget_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(seconds, self._give_up)

        def _forget_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.write(_ANSWER)
                self.transport.close()

    return HeaderTimeout

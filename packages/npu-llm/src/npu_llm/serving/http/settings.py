"""Settings: address, key, limits and logs of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npu_llm.errors import OptionError

__all__ = ["LogFormat", "Settings", "is_local"]

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Address, key, limits and logs of a server.

    Attributes:
        host, port: address to listen on.
        uds: Unix socket to listen on instead; None for the address.
        api_keys: clients must send one of these keys; empty for no authentication.
        is_open: whether to answer without a key on an address that other machines can reach.
        grace_s: grace period for answers after SIGTERM.
        max_body_bytes: maximum size of a request.
        header_timeout_s: time limit for a request's line and headers.
        body_timeout_s: time limit for its body.
        log_format: format of the log.
        traces_to: OTLP endpoint for spans of requests; None for no tracing.
        cors_origins: origins of pages that may use the server; "*" for all.
        tls_cert, tls_key: files of the certificate and its key; None for no TLS.
        refuses_unknown_fields: whether a request with an unknown field is rejected; else the field
            is ignored and named in a header of the response.
        fetches_media: whether images and sounds are fetched from URLs in requests.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    is_open: bool = False
    grace_s: float = 30.0
    max_body_bytes: int = 8 << 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    log_format: LogFormat = "text"
    traces_to: str | None = None
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    refuses_unknown_fields: bool = False
    fetches_media: bool = False

    def __post_init__(self) -> None:
        is_reachable = self.uds is None and not is_local(self.host)
        if is_reachable and not self.api_keys and not self.is_open:
            raise OptionError(
                f"`--host` must be a loopback address without an API key, got {self.host}. Pass "
                "--api-key, or --no-api-key to accept all clients.",
                code="server-address",
            )

    @property
    def checks_host(self) -> bool:
        """Whether the Host header must name this machine: no key keeps other sites out."""
        return self.uds is None and not self.api_keys and is_local(self.host)


def is_local(host: str) -> bool:
    """Whether an address or a name is a loopback address."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

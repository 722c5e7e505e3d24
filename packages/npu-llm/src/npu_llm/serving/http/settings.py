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
        host, port: where it listens.
        uds: a Unix socket to listen on instead; None for none.
        api_keys: one of which clients must send; empty for nothing.
        is_open: whether anybody who reaches another address than this machine's own is answered
            without a key.
        grace_s: how long answers may go on after SIGTERM.
        max_body_bytes: how long a request may be.
        header_timeout_s: how long its line and headers may take to come.
        body_timeout_s: how long the rest may take.
        log_format: how its log looks.
        traces_to: the collector that spans of requests are sent to; None for none.
        cors_origins: sites whose pages may use the server; "*" for all.
        tls_cert, tls_key: files of a certificate and its key; None for no TLS.
        refuses_unknown_fields: whether a request with an unknown field is refused; else the field
            is ignored and named in a header of the response.
        fetches_media: whether images and sounds are fetched from addresses in requests.
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
                f"--host: must be an address of this machine alone where no key is asked for; got "
                f"{self.host}. Pass --api-key, or --no-api-key to answer everybody.",
                code="server-address",
            )

    @property
    def checks_host(self) -> bool:
        """Whether a request must name this machine: no key keeps other sites' pages out then."""
        return self.uds is None and not self.api_keys and is_local(self.host)


def is_local(host: str) -> bool:
    """Whether an address or a name is this machine, for this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

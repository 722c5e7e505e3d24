"""The command `npu-llm serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import importlib.util
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.command_parser import CommandParser, port_number
from npu_llm.cli.arguments import add_model, check_model, positive, scaled_path
from npu_llm.cli.terminal import Display
from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from npu_llm.serving.http.settings import Settings

__all__ = ["main", "make_parser"]

_NEEDED = ("starlette", "uvicorn", "pydantic", "prometheus_client", "python_multipart")


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and serves until a signal ends it; returns the exit code."""
    return _serve(make_parser().parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser(
        prog="npu-llm serve",
        description="Starts an OpenAI-compatible HTTP server with continuous batching: "
        "/v1/chat/completions, /v1/completions, /v1/embeddings, /v1/audio/transcriptions, "
        "/v1/models and more, and a chat page at /.",
        check=_check,
        is_intermixed=True,
    )
    add_model(parser, is_repeatable=True)
    parser.add_argument(
        "--alias",
        metavar="NAME",
        action="append",
        default=[],
        help="the model's name in the API; repeatable, in the order of the models",
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME=PATH[:SCALE]",
        action="append",
        type=_named_adapter,
        default=[],
        help="serve a LoRA adapter as the model NAME; repeatable",
    )
    _add_address(parser)
    _add_bounds(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address and access")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine only)",
    )
    group.add_argument(
        "--port", metavar="N", type=port_number, default=8000, help="port (default: 8000)"
    )
    group.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead")
    keys = group.add_mutually_exclusive_group()
    keys.add_argument("--api-key", metavar="KEY", help="the API key that clients must send")
    keys.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help="file with API keys, one per line; keeps them out of the process list",
    )
    keys.add_argument(
        "--no-api-key",
        action="store_true",
        help="allow an address other than localhost without a key",
    )
    group.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="a website whose pages may use the server, such as http://localhost:3000, or * for "
        "all; repeatable",
    )
    group.add_argument("--tls-cert", metavar="FILE", type=Path, help="TLS certificate, for HTTPS")
    group.add_argument("--tls-key", metavar="FILE", type=Path, help="key of the certificate")
    group.add_argument(
        "--strict-fields",
        action="store_true",
        help="reject requests with unknown fields (default: ignore them and list them in the "
        "response header X-Ignored-Fields)",
    )
    group.add_argument(
        "--allow-media-urls",
        action="store_true",
        help="fetch images and audio from URLs in requests (default: data URLs only)",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log format; the log never contains prompts (default: text)",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="endpoint for OpenTelemetry spans of requests, such as "
        "http://127.0.0.1:4318/v1/traces (needs npu-llm[otel])",
    )


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-step-tokens",
        metavar="N",
        type=positive,
        default=256,
        help="maximum number of tokens in a step: a low limit keeps decoding smooth during "
        "prefill, a high one speeds up prefill (default: 256)",
    )
    group.add_argument(
        "--max-running",
        metavar="N",
        type=positive,
        default=64,
        help="maximum number of requests that run at once (default: 64)",
    )
    group.add_argument(
        "--max-queue",
        metavar="N",
        type=positive,
        default=256,
        help="maximum number of waiting requests; more are rejected (default: 256)",
    )
    group.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive,
        help="maximum number of tokens of an answer (default: as many as the context has room for)",
    )
    group.add_argument(
        "--cache-memory",
        metavar="MB",
        type=positive,
        help="size of the KV cache (default: 2048, or the size of one context)",
    )
    group.add_argument(
        "--max-loaded",
        metavar="N",
        type=positive,
        help="maximum number of loaded models (default: all)",
    )
    group.add_argument(
        "--max-memory",
        metavar="MB",
        type=positive,
        help="total memory of loaded models with their KV caches (default: no limit)",
    )
    group.add_argument(
        "--unload-after",
        metavar="S",
        type=float,
        help="unload a model after S seconds without a request (default: never)",
    )
    group.add_argument(
        "--max-body",
        metavar="MB",
        type=positive,
        default=8,
        help="maximum size of a request (default: 8)",
    )
    group.add_argument(
        "--grace",
        metavar="S",
        type=float,
        default=30.0,
        help="seconds for running answers to finish after SIGTERM (default: 30)",
    )


def _check(options: argparse.Namespace) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{missing[0]} must be installed for the server, got no such package. Run `pip install "
            "'npu-llm[serve]'`.",
            code="missing-serve",
        )
    _keys(options)
    _check_tls(options)
    check_model(options)


def _check_tls(options: argparse.Namespace) -> None:
    """Raises OptionError [server-tls] if certificate or key cannot be used."""
    cert, key = options.tls_cert, options.tls_key
    if cert is None and key is None:
        return
    try:
        if cert is None or key is None:
            raise ValueError("only one of them")
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ValueError) as failure:  # SSLError is an OSError
        raise OptionError(
            "`--tls-cert` must be a certificate in PEM with its key in --tls-key, got "
            f"{failure}. Pass both files.",
            code="server-tls",
        ) from failure


def _serve(options: argparse.Namespace) -> int:
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.serving.loaders import make_registry
    from npu_llm.engine.engine import EngineOptions
    from npu_llm.serving.http.server import run
    from npu_llm.serving.http.settings import Settings

    settings = Settings(
        host=options.host,
        port=options.port,
        uds=options.uds,
        api_keys=_keys(options),
        cors_origins=tuple(options.cors_origin),
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        refuses_unknown_fields=options.strict_fields,
        fetches_media=options.allow_media_urls,
        is_open=options.no_api_key,
        grace_s=options.grace,
        max_body_bytes=options.max_body << 20,
        log_format=options.log_format,
        traces_to=options.otlp_traces_endpoint,
    )
    engine = EngineOptions(
        max_num_batched_tokens=options.max_step_tokens,
        max_num_seqs=options.max_running,
        max_waiting=options.max_queue,
        max_new_tokens=options.max_new_tokens,
        cache_bytes=None if options.cache_memory is None else options.cache_memory << 20,
    )
    display = Display()
    registry = make_registry(options, engine, display)
    run(
        registry,
        settings,
        on_start=lambda port: display.line(f"serving {_place(settings, port, registry.names)}"),
    )
    return 0


def _named_adapter(text: str) -> tuple[str, Path, float]:
    """Parses NAME=PATH[:SCALE], for argparse."""
    name, _, rest = text.partition("=")
    if not name or not rest:
        raise argparse.ArgumentTypeError(f"must be NAME=PATH or NAME=PATH:SCALE, got {text!r}")
    return (name, *scaled_path(rest))


def _keys(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the API keys; clients must send one of them. Empty if no key is needed."""
    if options.api_key is None and options.api_key_file is None:
        return ()
    keys = [options.api_key]
    if options.api_key_file is not None:
        try:
            lines = options.api_key_file.read_text().splitlines()
        except (OSError, ValueError) as failure:
            raise OptionError(
                f"`--api-key-file` must be a file with API keys, got {options.api_key_file}: "
                f"{failure}. Name another.",
                code="api-key",
            ) from failure
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys or not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise OptionError(
            "`--api-key` must be printable ASCII without spaces, got an empty or another text. "
            "Choose another.",
            code="api-key",
        )
    return tuple(keys)


def _place(settings: Settings, port: int, names: Sequence[str]) -> str:
    """Returns the line that reports the models and the address."""
    scheme = "http" if settings.tls_cert is None else "https"
    place = f"unix:{settings.uds}" if settings.uds else f"{scheme}://{settings.host}:{port}"
    guarded = "with a key" if settings.api_keys else "without a key"
    return f"{', '.join(names)} at {place}, {guarded}; Ctrl-C ends it"

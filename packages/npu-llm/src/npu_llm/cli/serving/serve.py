"""`npu-llm serve`: answers over HTTP, as OpenAI's interface does."""

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
    """Parses the arguments, and serves until a signal ends it; returns the exit code."""
    return _serve(make_parser().parse_args(arguments))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser(
        prog="npu-llm serve",
        description="Answers over HTTP, as OpenAI's interface does: /v1/chat/completions, "
        "/v1/completions, /v1/embeddings, /v1/audio/transcriptions, /v1/models and more, and a "
        "page to try it at /.",
        check=_check,
    )
    add_model(parser, is_repeatable=True)
    parser.add_argument(
        "--alias",
        metavar="NAME",
        action="append",
        default=[],
        help="what clients call the model; repeated, in the order of --model",
    )
    parser.add_argument(
        "--adapter",
        metavar="NAME=PATH[:SCALE]",
        action="append",
        type=_named_adapter,
        default=[],
        help="a LoRA adapter as a model of its own, which clients call NAME; may be repeated",
    )
    _add_address(parser)
    _add_bounds(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where, and for whom")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="where to listen (default: 127.0.0.1, for this machine alone)",
    )
    group.add_argument("--port", metavar="N", type=port_number, default=8000, help="default: 8000")
    group.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead")
    keys = group.add_mutually_exclusive_group()
    keys.add_argument("--api-key", metavar="KEY", help="what clients must send")
    keys.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help="the same, in a file, so that a list of processes does not show it; one a line",
    )
    keys.add_argument(
        "--no-api-key", action="store_true", help="answer everybody who reaches another address too"
    )
    group.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="a site, such as http://localhost:3000, whose pages may use the server, or * for all; "
        "may be repeated",
    )
    group.add_argument("--tls-cert", metavar="FILE", type=Path, help="a certificate, for HTTPS")
    group.add_argument("--tls-key", metavar="FILE", type=Path, help="its key")
    group.add_argument(
        "--strict-fields",
        action="store_true",
        help="refuse requests with unknown fields (default: ignore them, and name them in the "
        "header X-Ignored-Fields of the response)",
    )
    group.add_argument(
        "--allow-media-urls",
        action="store_true",
        help="fetch images and sounds from addresses in requests (default: data URLs only)",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="how the log looks; it never has prompts (default: text)",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="where OpenTelemetry's spans of requests are sent, such as "
        "http://127.0.0.1:4318/v1/traces (needs npu-llm[otel])",
    )


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("bounds")
    group.add_argument(
        "--max-step-tokens",
        metavar="N",
        type=positive,
        default=256,
        help="tokens that a step reads at most: fewer answer more evenly while "
        "prompts are read, more read them faster (default: 256)",
    )
    group.add_argument(
        "--max-running",
        metavar="N",
        type=positive,
        default=64,
        help="requests that are answered at once (default: 64)",
    )
    group.add_argument(
        "--max-queue",
        metavar="N",
        type=positive,
        default=256,
        help="requests that wait; more are refused (default: 256)",
    )
    group.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive,
        help="tokens of an answer, at most (default: as many as the context has room for)",
    )
    group.add_argument(
        "--cache-memory",
        metavar="MB",
        type=positive,
        help="for keys and values (default: 2048, or what one context needs)",
    )
    group.add_argument(
        "--max-loaded", metavar="N", type=positive, help="models in memory at once (default: all)"
    )
    group.add_argument(
        "--max-memory",
        metavar="MB",
        type=positive,
        help="for the models in memory together, with their caches (default: no bound)",
    )
    group.add_argument(
        "--unload-after",
        metavar="S",
        type=float,
        help="unload a model that nobody used for S seconds (default: never)",
    )
    group.add_argument(
        "--max-body", metavar="MB", type=positive, default=8, help="size of a request (default: 8)"
    )
    group.add_argument(
        "--grace",
        metavar="S",
        type=float,
        default=30.0,
        help="how long answers may go on after SIGTERM (default: 30)",
    )


def _check(options: argparse.Namespace) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"npu-llm serve: {missing[0]} must be installed, got none. Install it: pip install "
            "'npu-llm[serve]'.",
            code="missing-serve",
        )
    _keys(options)
    _check_tls(options)
    check_model(options)


def _check_tls(options: argparse.Namespace) -> None:
    """Raises OptionError [server-tls] for a certificate or a key that cannot be used."""
    cert, key = options.tls_cert, options.tls_key
    if cert is None and key is None:
        return
    try:
        if cert is None or key is None:
            raise ValueError("one of them")
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ValueError) as failure:  # SSLError is an OSError
        raise OptionError(
            "`--tls-cert` must be a certificate in PEM, with its key in --tls-key, got "
            f"{failure}. Name both files.",
            code="server-tls",
        ) from failure


def _serve(options: argparse.Namespace) -> int:
    # Heavy: a mistyped command should not wait for these.
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
    """Returns the keys of which clients must send one; empty for none."""
    if options.api_key is None and options.api_key_file is None:
        return ()
    keys = [options.api_key]
    if options.api_key_file is not None:
        try:
            lines = options.api_key_file.read_text().splitlines()
        except (OSError, ValueError) as failure:
            raise OptionError(
                f"`--api-key-file` must be a file with the keys, got {options.api_key_file}, "
                f"{failure}. Name another.",
                code="api-key",
            ) from failure
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys or not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise OptionError(
            "`--api-key` must be ASCII characters without spaces, at least one, got others. Choose "
            "another.",
            code="api-key",
        )
    return tuple(keys)


def _place(settings: Settings, port: int, names: Sequence[str]) -> str:
    """Returns what is served where, for whoever started it."""
    scheme = "http" if settings.tls_cert is None else "https"
    place = f"unix:{settings.uds}" if settings.uds else f"{scheme}://{settings.host}:{port}"
    guarded = "with a key" if settings.api_keys else "without a key"
    return f"{', '.join(names)} at {place}, {guarded}; Ctrl-C ends it"

"""`npu-llm serve`: answers over HTTP, as OpenAI's interface does."""

from __future__ import annotations

import argparse
import importlib.util
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
        help="the same, in a file, so that a list of processes does not show it",
    )
    keys.add_argument(
        "--no-api-key", action="store_true", help="answer everybody who reaches another address too"
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
            f"npu-llm serve: {missing[0]} must be installed; got none. Install it: pip install "
            "'npu-llm[serve]'.",
            code="missing-serve",
        )
    if options.api_key is not None:
        _key(options)
    check_model(options)


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
        api_key=_key(options),
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
        raise argparse.ArgumentTypeError(f"must be NAME=PATH or NAME=PATH:SCALE; got {text!r}")
    return (name, *scaled_path(rest))


def _key(options: argparse.Namespace) -> str | None:
    """Returns the key that clients must send; None for none."""
    key: str | None = options.api_key
    if options.api_key_file is not None:
        try:
            key = options.api_key_file.read_text().strip()
        except (OSError, ValueError) as failure:
            raise OptionError(
                f"--api-key-file: must be a file with the key; got {options.api_key_file}, "
                f"{failure}. Name another.",
                code="api-key",
            ) from failure
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise OptionError(
            "--api-key: must be ASCII characters without spaces, at least one; got others. Choose "
            "another.",
            code="api-key",
        )
    return key


def _place(settings: Settings, port: int, names: Sequence[str]) -> str:
    """Returns what is served where, for whoever started it."""
    place = f"unix:{settings.uds}" if settings.uds else f"http://{settings.host}:{port}"
    guarded = "with a key" if settings.api_key else "without a key"
    return f"{', '.join(names)} at {place}, {guarded}; Ctrl-C ends it"

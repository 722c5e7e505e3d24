"""Log probabilities of tokens in the forms of OpenAI's chats and completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_llm.engine.sampler import Token
from npu_llm.serving.models.served_model import ServedModel

__all__ = ["chat_logprobs", "completion_logprobs", "token_text"]

_MIN_LOGPROB = -9999.0  # for a probability of 0: JSON has no -inf


def chat_logprobs(served: ServedModel, tokens: Sequence[Token], *, top: int) -> dict[str, Any]:
    """Returns the `logprobs` of a chat's choice, for tokens that are part of its text."""
    return {
        "content": [
            {
                **_entry(served, token.id, token.logprob),
                "top_logprobs": [_entry(served, *one) for one in token.top[:top]],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(
    served: ServedModel,
    tokens: Sequence[Token],
    *,
    top: int,
    offset: int,
    first: int | None = None,
) -> dict[str, Any]:
    """Returns the `logprobs` of a completion's choice.

    Args:
        served: the model.
        tokens: tokens of the choice.
        top: number of alternatives to report.
        offset: offset of the first token in the text, in characters.
        first: first token of an echoed prompt, without a probability; None without echo.
    """
    ids = [token.id for token in tokens] if first is None else [first, *(one.id for one in tokens)]
    unknown: list[Any] = [] if first is None else [None]
    offsets, place = [], offset
    pending = b""
    for token in ids:
        offsets.append(place)
        pending += served.token_bytes.of(token)
        try:
            place, pending = place + len(pending.decode()), b""
        except UnicodeDecodeError:
            continue  # a partial character, which the next token completes
    return {
        "tokens": [token_text(served, token) for token in ids],
        "token_logprobs": unknown + [_bounded(token.logprob) for token in tokens],
        "top_logprobs": unknown + [_alternatives(served, token, top) for token in tokens],
        "text_offset": offsets,
    }


def token_text(served: ServedModel, token: int) -> str:
    """Returns the text of a token, or like OpenAI the bytes of a partial character."""
    content = served.token_bytes.of(token)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _alternatives(served: ServedModel, token: Token, top: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for number, logprob in token.top[:top]:
        found.setdefault(token_text(served, number), _bounded(logprob))
    return found


def _entry(served: ServedModel, token: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": token_text(served, token),
        "logprob": _bounded(logprob),
        "bytes": list(served.token_bytes.of(token)),
    }


def _bounded(logprob: float | None) -> float:
    return max(logprob or 0.0, _MIN_LOGPROB)

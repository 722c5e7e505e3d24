"""Logarithms of probabilities, in the two forms that OpenAI's interface has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.scheduling.request import Token

__all__ = ["chat_logprobs", "completion_logprobs"]

_LEAST = -9999.0  # stands for a probability of 0, which JSON has no logarithm for


def chat_logprobs(served: ServedModel, tokens: Sequence[Token], *, top: int) -> dict[str, Any]:
    """Returns the `logprobs` of a chat's choice, for tokens that are part of its text."""
    return {
        "content": [
            {
                **_entry(served, token.id, token.logprob or 0.0),
                "top_logprobs": [_entry(served, *one) for one in token.top[:top]],
            }
            for token in _spoken(served, tokens)
        ],
        "refusal": None,
    }


def completion_logprobs(
    served: ServedModel, tokens: Sequence[Token], *, top: int, offset: int
) -> dict[str, Any]:
    """Returns the `logprobs` of a completion's choice.

    Args:
        served: the model.
        tokens: of the choice.
        top: how many alternatives to tell.
        offset: where in the text the first token begins, in characters.
    """
    spoken = _spoken(served, tokens)
    texts = [_text(served, token.id) for token in spoken]
    offsets = [offset + sum(map(len, texts[:index])) for index in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [max(token.logprob or 0.0, _LEAST) for token in spoken],
        "top_logprobs": [
            {_text(served, place): max(value, _LEAST) for place, value in token.top[:top]}
            for token in spoken
        ],
        "text_offset": offsets,
    }


def _spoken(served: ServedModel, tokens: Sequence[Token]) -> list[Token]:
    return [token for token in tokens if token.id not in served.ends]


def _entry(served: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    text = _text(served, token)
    whole = None if "�" in text else list(text.encode())  # else a part of a character
    return {"token": text, "logprob": max(logprob, _LEAST), "bytes": whole}


def _text(served: ServedModel, token: int) -> str:
    text: str = served.tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text

"""Sampling options, inputs and logprobs of requests, for the endpoints that write text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.serving.answer import Answer
from npu_llm.serving.http.errors import RequestError
from npu_llm.serving.http.schemas import ChatMessage, SamplingBody
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.structured_output import Form

__all__ = [
    "chat_logprobs",
    "completion_logprobs",
    "form_of",
    "inputs_of",
    "messages_of",
    "sampling_of",
    "stops_of",
    "submit",
]

_MAX_TOKENS = 4096  # of an answer, where neither the request nor the context sets a bound
_MIN_TEMPERATURE = 1e-3
_FIELDS = (
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "seed",
)  # fmt: skip


def submit(
    served: ServedModel,
    prompt: Sequence[int],
    body: SamplingBody,
    *,
    max_tokens: int | None,
    constraints: Sequence[Any],
    logprobs: int | None,
    tokenizer: Any,
    count: int,
) -> list[Answer]:
    """Submits the requests for all answers to one prompt, or none of them.

    Args:
        served: the model.
        prompt: its tokens.
        body: how to choose.
        max_tokens: of each answer; None for as many as the context has room for.
        constraints: one for each answer; empty for none.
        logprobs: as in SamplingParams.
        tokenizer: decodes.
        count: how many answers.

    Raises:
        NpuError: as Engine.submit does.
    """
    params = sampling_of(served, body)
    if max_tokens is None:
        context = served.context_length
        max_tokens = _MAX_TOKENS if context is None else max(context - len(prompt), 1)
    answers: list[Answer] = []
    try:
        for index in range(count):
            seed = None if params.seed is None else params.seed + index
            asked = replace(
                params,
                max_new_tokens=max_tokens,
                seed=_as_seed(seed),
                stop=tuple(stops_of(body)),
                stop_token_ids=frozenset() if body.ignore_eos else served.ends,
                logprobs=logprobs,
            )
            constraint = constraints[index] if constraints else None
            answers.append(Answer(served.engine, prompt, asked, tokenizer, constraint=constraint))
    except BaseException:
        for answer in answers:
            answer.close()
        raise
    return answers


def sampling_of(served: ServedModel, body: SamplingBody) -> SamplingParams:
    """Returns the sampling parameters of a request.

    Raises:
        RequestError: [request-field] for a bias on what is not a token.
    """
    given = {name: getattr(body, name) for name in _FIELDS if getattr(body, name) is not None}
    if 0 < given.get("temperature", 1) < _MIN_TEMPERATURE:
        given["temperature"] = 0.0  # no second token has a chance that float32 can tell
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # -1 is all in some clients
    if body.logit_bias:
        given["logit_bias"] = _bias(body.logit_bias, served.model.vocabulary)
    return replace(served.sampling, **given)


def stops_of(body: SamplingBody) -> list[str]:
    """Returns the strings that end an answer."""
    if body.stop is None:
        return []
    return [body.stop] if isinstance(body.stop, str) else list(body.stop)


def messages_of(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Returns messages as chat templates take them."""
    found = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": message.text}
        for name in ("name", "tool_call_id"):
            if getattr(message, name) is not None:
                one[name] = getattr(message, name)
        if message.tool_calls:
            one["tool_calls"] = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.function.name,
                              "arguments": _arguments(call.function.arguments)}}
                for call in message.tool_calls
            ]  # fmt: skip
        found.append(one)
    return found


def inputs_of(parameter: str, given: Any, *, most: int) -> list[Any]:
    """Returns the inputs of a request, each as text or tokens, where one may stand alone.

    Args:
        parameter: the field's name.
        given: a text, tokens, or a list of either.
        most: how many there may be.

    Raises:
        RequestError: [request-field] for none, too many, or an empty one.
    """
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    found: list[Any] = [given] if is_one else list(given)
    is_right_count = 0 < len(found) <= most
    if not is_right_count or not all(found):
        received = "an empty one" if is_right_count else f"{len(found):,}"
        raise RequestError(
            f"{parameter}: must be 1 to {most:,} texts or lists of tokens, none empty; got "
            f"{received}. Pass some.",
            code="request-field",
            parameter=parameter,
        )
    return found


def form_of(body: SamplingBody, response_format: Any = None) -> Callable[[], Form] | None:
    """Returns what makes the form that a request asks for; None if it asks for none.

    Raises:
        RequestError: [request-field] for more than one, or a schema that is missing.
    """
    makers: list[Callable[[], Form]] = []
    if (regex := body.regex) is not None:
        makers.append(lambda: Form.of_regex(regex))
    if (grammar := body.grammar) is not None:
        makers.append(lambda: Form.of_grammar(grammar))
    if response_format is not None and response_format.type == "json_object":
        makers.append(Form.of_json)
    if response_format is not None and response_format.type == "json_schema":
        given = response_format.json_schema
        schema = None if given is None else given.schema_
        if schema is None:
            raise RequestError(
                "response_format.json_schema.schema: must be there for this type; got nothing. "
                "Pass the schema.",
                code="request-field",
                parameter="response_format",
            )
        makers.append(lambda: Form.of_schema(schema))
    if len(makers) > 1:
        raise RequestError(
            "response_format: must be the only form; got a regex or a grammar too. Omit one.",
            code="request-field",
            parameter="response_format",
        )
    return makers[0] if makers else None


def _bias(given: dict[str, float], vocabulary: int) -> dict[int, float]:
    found = {}
    for name, bias in given.items():
        if not (name.isascii() and name.isdecimal() and len(name) < 12 and int(name) < vocabulary):
            raise RequestError(
                f"logit_bias: must name tokens, 0 to {vocabulary - 1}; got {name[:40]!r}. POST "
                "/tokenize tells a text's tokens.",
                code="request-field",
                parameter="logit_bias",
            )
        found[int(name)] = bias
    return found


def _arguments(text: str) -> Any:
    """Returns the arguments of a call as templates want them; as they are if not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_seed(seed: int | None) -> int | None:
    """Returns a seed that torch takes: of 64 bits."""
    return None if seed is None else seed % (1 << 63)


_MIN_LOGPROB = -9999.0  # stands for a probability of 0, which JSON has no logarithm for


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
        "token_logprobs": [max(token.logprob or 0.0, _MIN_LOGPROB) for token in spoken],
        "top_logprobs": [
            {_text(served, place): max(value, _MIN_LOGPROB) for place, value in token.top[:top]}
            for token in spoken
        ],
        "text_offset": offsets,
    }


def _spoken(served: ServedModel, tokens: Sequence[Token]) -> list[Token]:
    return [token for token in tokens if token.id not in served.ends]


def _entry(served: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    text = _text(served, token)
    whole = None if "�" in text else list(text.encode())  # else a part of a character
    return {"token": text, "logprob": max(logprob, _MIN_LOGPROB), "bytes": whole}


def _text(served: ServedModel, token: int) -> str:
    text: str = served.tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text

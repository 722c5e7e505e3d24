"""Converts fields of OpenAI's requests: sampling, messages, inputs and forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npu_llm.serving.generation import Prompt, TextRequest
from npu_llm.serving.http.schemas.llama_cpp import LlamaOptions
from npu_llm.serving.http.schemas.openai import AudioPart, ChatMessage, SamplingBody
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import Form

__all__ = [
    "bias_of",
    "call_of",
    "content_of",
    "form_of",
    "inputs_of",
    "messages_of",
    "request_of",
    "sampling_of",
    "schema_forms",
    "stops_of",
    "thinking_options",
]

_COMMON = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty")
_FIELDS = (*_COMMON, "repetition_penalty", "seed")


def request_of(body: SamplingBody, prompts: Sequence[Prompt], **more: Any) -> TextRequest:
    """Returns the request for a body's sampling fields and prompts.

    Args:
        body: the body.
        prompts: the prompts.
        more: attributes of TextRequest.

    Raises:
        RequestError: [request-field] for a bias of an invalid token.
    """
    given = {name: getattr(body, name) for name in _FIELDS if getattr(body, name) is not None}
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # -1 is all in some clients
    if body.logit_bias:
        given["logit_bias"] = bias_of(body.logit_bias)
    return TextRequest(
        prompts=prompts,
        sampling={
            **given,
            "stop": tuple(stops_of(body.stop)),
            "stop_token_ids": frozenset(body.stop_token_ids or ()),
            "min_new_tokens": body.min_tokens,
        },
        count=body.n,
        ignores_ends=body.ignore_eos,
        includes_stop=body.include_stop_str_in_output,
        skips_special_tokens=body.skip_special_tokens,
        cache_salt=body.cache_salt,
        uses_cache=body.cache_prompt,
        **more,
    )


def stops_of(stop: str | Sequence[str] | None) -> list[str]:
    """Returns the strings that end an answer."""
    if stop is None:
        return []
    return [stop] if isinstance(stop, str) else list(stop)


def sampling_of(options: LlamaOptions, *, seed: int | None) -> dict[str, Any]:
    """Returns sampling parameters and stop strings for llama.cpp's options.

    Args:
        options: the options.
        seed: the seed; None for a random one.
    """
    given = {name: getattr(options, name) for name in _COMMON}
    given |= {"repetition_penalty": options.repeat_penalty, "seed": seed}
    if options.top_k is not None:
        given["top_k"] = max(options.top_k, 0)
    found = {name: value for name, value in given.items() if value is not None}
    return found | {"stop": tuple(stop for stop in stops_of(options.stop) if stop)}


def thinking_options(effort: str | bool | None) -> dict[str, Any]:
    """Returns the options of a chat template that set the reasoning effort.

    Args:
        effort: "none", a level such as "low", or a bool; None for the template's default.
    """
    if effort is None or isinstance(effort, bool):
        return {} if effort is None else {"enable_thinking": effort}
    if effort == "none":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def messages_of(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Returns messages in the form of chat templates."""
    found = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": content_of(message.content)}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if getattr(message, name) is not None:
                one[name] = getattr(message, name)
        if message.tool_calls:
            one["tool_calls"] = [
                call_of(call.id, call.function.name, call.function.arguments)
                for call in message.tool_calls
            ]
        found.append(one)
    return found


def call_of(number: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Returns an earlier tool call in the form of chat templates.

    Args:
        number: id of the call.
        name: name of the function.
        arguments: JSON text, or its value.
    """
    given = _parsed(arguments) if isinstance(arguments, str) else arguments
    return {"id": number, "type": "function", "function": {"name": name, "arguments": given}}


def content_of(content: str | Sequence[Any] | None) -> str | list[dict[str, Any]]:
    """Returns the content of a message: a text, or parts if it has an image or a sound."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    part: Any
    for part in content:
        if isinstance(part, AudioPart):
            sound = part.input_audio.data
            parts.append({"type": "audio", "url": f"data:audio;base64,{sound}"})
        elif hasattr(part, "url"):
            parts.append({"type": "image", "url": part.url})
        else:
            parts.append({"type": "text", "text": part.text})
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def inputs_of(parameter: str, given: Any, *, most: int) -> list[Any]:
    """Returns the inputs of a request, each as text or tokens; a single one needs no list.

    Args:
        parameter: the field's name.
        given: a text, tokens, or a list of either.
        most: maximum number of inputs.

    Raises:
        RequestError: [request-field] for none, too many, or an empty one.
    """
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    found: list[Any] = [given] if is_one else list(given)
    is_right_count = 0 < len(found) <= most
    if not is_right_count or not all(found):
        received = "an empty one" if is_right_count else f"{len(found):,}"
        raise RequestError(
            f"`{parameter}` must be 1 to {most:,} texts or lists of tokens, without empty ones, "
            f"got {received}. Pass some.",
            code="request-field",
            parameter=parameter,
        )
    return found


def form_of(body: SamplingBody, response_format: Any = None) -> Callable[[], Form] | None:
    """Returns the maker of the form that a request describes; None for free text.

    Raises:
        RequestError: [request-field] for more than one, or a schema that is missing.
    """
    makers = _forms(regex=body.regex, grammar=body.grammar)
    if (other := body.structured_outputs) is not None:
        makers += _forms(
            regex=other.regex, grammar=other.grammar, schema=other.json_, choice=other.choice,
            is_json=bool(other.json_object),
        )  # fmt: skip
    if response_format is not None:
        given = response_format.json_schema
        schema = None if given is None else given.schema_
        makers += schema_forms(response_format.type, schema, field="response_format")
    if len(makers) > 1:
        raise RequestError(
            "`response_format` must be the only form, got a regex or a grammar too. Omit one.",
            code="request-field",
            parameter="response_format",
        )
    return makers[0] if makers else None


def schema_forms(
    kind: str, schema: Mapping[str, Any] | None, *, field: str
) -> list[Callable[[], Form]]:
    """Returns the maker of the form that OpenAI's `json_schema` describes.

    Args:
        kind: "text", "json_object" or "json_schema".
        schema: the schema.
        field: name of the field, for messages.

    Raises:
        RequestError: [request-field] for a schema that is missing.
    """
    if kind == "json_schema" and schema is None:
        raise RequestError(
            f"`{field}` must have a schema for this type, got none. Pass the schema.",
            code="request-field",
            parameter=field,
        )
    if kind == "json_schema":
        return _forms(schema=schema)
    return _forms(is_json=kind == "json_object")


def _forms(
    *,
    regex: str | None = None,
    grammar: str | None = None,
    schema: Mapping[str, Any] | str | None = None,
    choice: Sequence[str] | None = None,
    is_json: bool = False,
) -> list[Callable[[], Form]]:
    makers: list[Callable[[], Form]] = []
    if regex is not None:
        makers.append(lambda: Form.of_regex(regex))
    if grammar is not None:
        makers.append(lambda: Form.of_grammar(grammar))
    if schema is not None:
        parsed = _parsed(schema) if isinstance(schema, str) else schema
        makers.append(lambda: Form.of_schema(parsed))
    if choice is not None:
        pattern = "|".join(map(re.escape, choice))
        makers.append(lambda: Form.of_regex(pattern))
    if is_json:
        makers.append(Form.of_json)
    return makers


def bias_of(given: Mapping[str, float]) -> dict[int, float]:
    """Returns biases by token; raises RequestError [request-field] for an invalid token."""
    found = {}
    for name, bias in given.items():
        if not (name.isascii() and name.isdecimal() and len(name) < 12):
            raise RequestError(
                f"`logit_bias` must have token ids as keys, got {name[:40]!r}. Get a text's "
                "tokens with POST /tokenize.",
                code="request-field",
                parameter="logit_bias",
            )
        found[int(name)] = bias
    return found


def _parsed(text: str) -> Any:
    """Returns the arguments of a call as a value; text that is not JSON is returned unchanged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

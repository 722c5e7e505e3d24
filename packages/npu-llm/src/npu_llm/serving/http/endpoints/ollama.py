"""Ollama's API: /api/chat, /api/generate, /api/embed, and endpoints that clients probe."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.chat.output_parser import ParsedOutput
from npu_llm.chat.tool_calls import Call
from npu_llm.engine.sampler import Token
from npu_llm.serving.generation import (
    Choice,
    Conversation,
    Gap,
    Generation,
    Prompt,
    Text,
    TextRequest,
)
from npu_llm.serving.http.endpoints.fields import (
    call_of,
    sampling_of,
    schema_forms,
    thinking_options,
)
from npu_llm.serving.http.endpoints.logprobs import chat_logprobs
from npu_llm.serving.http.endpoints.tasks import embed
from npu_llm.serving.http.schemas.ollama import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
    OllamaShowBody,
)
from npu_llm.serving.http.service import Service, service_of
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError

__all__ = ["chat", "embed_texts", "embeddings", "generate", "ps", "show", "tags", "version"]

# The version of Ollama's interface. Clients compare it before they use a field.
_VERSION = "0.12.6"
_LINES = "application/x-ndjson"
# Ollama's defaults, if the generation config has none (docs/modelfile.mdx of ollama/ollama).
_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
_NEVER = "0001-01-01T00:00:00Z"


async def chat(request: Request) -> Response:
    """Answers a conversation, by default as lines of JSON."""
    service = service_of(request)
    body = await service.read(request, OllamaChatBody)
    conversation = Conversation(
        messages=[_message(one) for one in body.messages],
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        template_options=thinking_options(body.think),
    )
    return await _answer(service, request, body, conversation, bool(body.messages))


async def generate(request: Request) -> Response:
    """Answers a prompt, by default as lines of JSON."""
    service = service_of(request)
    body = await service.read(request, OllamaGenerateBody)
    prompt: Prompt
    if body.suffix and body.images:
        raise RequestError(
            "`suffix` must come without images, got both. Omit one.",
            code="request-unsupported",
            parameter="suffix",
        )
    if body.suffix:
        prompt = Gap(body.prompt, body.suffix)
    elif body.raw:
        prompt = Text(body.prompt)
    else:
        user = {"role": "user", "content": _content(body.prompt, body.images)}
        system = {"role": "system", "content": body.system}
        messages: list[dict[str, Any]] = [*([system] if body.system else []), user]
        options = thinking_options(body.think)
        prompt = Conversation(messages=messages, template_options=options)
    return await _answer(
        service, request, body, prompt, bool(body.prompt or body.suffix or body.images)
    )


async def tags(request: Request) -> Response:
    """Lists the models."""
    service = service_of(request)
    return JSONResponse({"models": [_listed(service, name) for name in service.registry.names]})


async def ps(request: Request) -> Response:
    """Lists the models in memory."""
    service = service_of(request)
    found = []
    for name, served in service.registry.loaded.items():
        about = {"expires_at": _NEVER, "size_vram": 0, "context_length": served.context_length or 0}
        found.append({**_listed(service, name), **about})
    return JSONResponse({"models": found})


async def version(_: Request) -> Response:
    """Returns the version of Ollama's interface."""
    return JSONResponse({"version": _VERSION})


async def show(request: Request) -> Response:
    """Describes a model."""
    service = service_of(request)
    body = await service.read(request, OllamaShowBody)
    name = service.registry.check(body.model or body.name or "")
    kinds = {"vectors": ["embedding"], "transcripts": ["audio"]}
    kind = service.registry.kind(name)
    capabilities = kinds.get(kind, ["completion"])
    info: dict[str, Any] = {"general.architecture": "npu-llm"}
    template = ""
    if kind == "text":
        async with service.registry.use(name, ServedModel) as served:
            template = served.tokenizer.chat_template or ""
            capabilities = served.capabilities
            info["npu-llm.context_length"] = served.context_length or 0
    return JSONResponse(
        {
            "modelfile": f"FROM {name}",
            "parameters": "",
            "template": template,
            "details": _DETAILS,
            "model_info": info,
            "capabilities": capabilities,
            "modified_at": _time(service.started),
        }
    )


async def embed_texts(request: Request) -> Response:
    """Returns embeddings of texts."""
    service = service_of(request)
    body = await service.read(request, OllamaEmbedBody)
    started = time.perf_counter_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input
    found = await embed(request, body.model, texts, dimensions=body.dimensions)
    if isinstance(found, Response):
        return found
    return JSONResponse(
        {
            "model": body.model,
            "embeddings": found.values.tolist(),
            "total_duration": time.perf_counter_ns() - started,
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }
    )


async def embeddings(request: Request) -> Response:
    """Returns the embedding of a text, in the older form."""
    service = service_of(request)
    body = await service.read(request, OllamaEmbeddingsBody)
    found = await embed(request, body.model, [body.prompt])
    if isinstance(found, Response):
        return found
    return JSONResponse({"embedding": found.values[0].tolist()})


_DETAILS = {
    "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
    "quantization_level": "",
}  # fmt: skip


def _listed(service: Service, name: str) -> dict[str, Any]:
    about = {"name": name, "model": name, "modified_at": _time(service.started)}
    return {**about, "size": 0, "digest": "", "details": _DETAILS}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _message(message: OllamaMessage) -> dict[str, Any]:
    """Returns a message in the form of chat templates."""
    content = _content(message.content, message.images)
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_name:
        found["name"] = message.tool_name
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            call_of(call.id or f"call_{index}", call.function.name, call.function.arguments)
            for index, call in enumerate(message.tool_calls)
        ]
    return found


def _content(text: str, images: Sequence[str] | None) -> str | list[dict[str, Any]]:
    if not images:
        return text
    parts = [{"type": "image", "url": f"data:;base64,{one}"} for one in images]
    return [*parts, {"type": "text", "text": text}]


async def _answer(
    service: Service,
    request: Request,
    body: OllamaChatBody | OllamaGenerateBody,
    prompt: Prompt,
    has_prompt: bool,
) -> Response:
    work = _Answering(body)
    if not has_prompt:  # a client that wants the model to be loaded
        name = service.registry.check(body.model)
        await service.registry.load(name)
        return JSONResponse({**work.part(""), "done": True, "done_reason": "load"})
    return await service.answer(request, body, _asked(body, prompt), work, media_type=_LINES)


def _asked(body: OllamaChatBody | OllamaGenerateBody, prompt: Prompt) -> TextRequest:
    """Returns the request without its protocol."""
    options = body.options or OllamaOptions.model_validate({})
    sampling = sampling_of(options, seed=options.seed)
    if options.top_p == 0:
        del sampling["top_p"]
        sampling["top_k"] = 1
    most = options.num_predict
    forms = []
    if body.format == "json":
        forms = schema_forms("json_object", None, field="format")
    elif isinstance(body.format, dict):
        forms = schema_forms("json_schema", body.format, field="format")
    return TextRequest(
        prompts=[prompt],
        sampling=sampling,
        default_sampling=_DEFAULTS,
        max_tokens=None if most is None or most < 0 else max(most, 1),
        make_form=forms[0] if forms else None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


class _Answering:
    """One request to /api/chat or /api/generate."""

    def __init__(self, body: OllamaChatBody | OllamaGenerateBody) -> None:
        self._body = body
        self._is_chat = isinstance(body, OllamaChatBody)
        self._started = time.perf_counter_ns()

    def part(self, text: str, calls: Sequence[Call] = (), *, reasoning: str = "") -> dict[str, Any]:
        """Returns an object with a part of the answer."""
        head = {"model": self._body.model, "created_at": _time(time.time())}
        thinking = {"thinking": reasoning} if reasoning else {}
        if not self._is_chat:
            return {**head, "response": text, **thinking}
        message: dict[str, Any] = {"role": "assistant", "content": text, **thinking}
        if calls:
            message["tool_calls"] = [_call(call, index) for index, call in enumerate(calls)]
        return {**head, "message": message}

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        (choice,) = choices
        logprobs = self._logprobs(generation.served, choice.tokens)
        return {
            **self.part(choice.text, choice.calls, reasoning=choice.reasoning),
            **logprobs,
            **self._end(generation, choice.finish),
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the parts of the answer, each a line of JSON."""
        finish = ""
        async for delta in generation.deltas():
            finish = delta.finish or finish
            output = ParsedOutput()
            for part in delta.parts:  # calls are not streamed
                output.add(part)
            calls = output.calls
            if delta.text or delta.reasoning or calls:
                logprobs = self._logprobs(generation.served, delta.tokens)
                told = self.part(delta.text, calls, reasoning=delta.reasoning)
                yield _line({**told, **logprobs, "done": False})
        yield _line({**self.part(""), **self._end(generation, finish)})

    def _end(self, generation: Generation, finish: str) -> dict[str, Any]:
        (answer,) = generation.answers
        usage = generation.usage()
        return {
            "done": True,
            "done_reason": finish,
            "total_duration": time.perf_counter_ns() - self._started,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": int(answer.read_s * 1e9),
            "eval_count": usage.answer,
            "eval_duration": int(answer.written_s * 1e9),
        }

    def _logprobs(self, served: ServedModel, tokens: Sequence[Token]) -> dict[str, Any]:
        if not self._body.logprobs:
            return {}
        top = self._body.top_logprobs or 0
        return {"logprobs": chat_logprobs(served, tokens, top=top)["content"]}


def _call(call: Call, index: int) -> dict[str, Any]:
    arguments = json.loads(call.arguments)
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"

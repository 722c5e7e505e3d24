"""llama.cpp's interface: /completion, /infill, /detokenize and /props."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from importlib import metadata
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.serving.generation import Choice, Generation, TextRequest
from npu_llm.serving.http.endpoints.fields import bias_of, sampling_of, schema_forms
from npu_llm.serving.http.endpoints.logprobs import token_text
from npu_llm.serving.http.schemas.llama_cpp import (
    InfillBody,
    LlamaCompletionBody,
    LlamaSamplingBody,
)
from npu_llm.serving.http.schemas.openai import DetokenizeBody
from npu_llm.serving.http.service import service_of
from npu_llm.serving.http.streaming import event
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import Form

__all__ = ["completion", "detokenize", "infill", "props"]

_MIN_BIAS = -100.0  # `false`: the token is excluded


async def completion(request: Request) -> Response:
    """Continues a text or tokens."""
    service = service_of(request)
    body = await service.read(request, LlamaCompletionBody)
    async with service.registry.use(body.model, ServedModel) as served:
        prompt = await _tokens(served, body.prompt)
    return await _answer(request, body, prompt)


async def infill(request: Request) -> Response:
    """Fills in the text between a beginning and an end."""
    service = service_of(request)
    body = await service.read(request, InfillBody)
    async with service.registry.use(body.model, ServedModel) as served:
        prompt = await served.encode_gap(
            body.input_prefix + body.prompt,
            body.input_suffix,
            files=[(one.filename, one.text) for one in body.input_extra or ()],
            field="input_suffix",
        )
    return await _answer(request, body, prompt)


async def detokenize(request: Request) -> Response:
    """Returns the text of tokens."""
    service = service_of(request)
    body = await service.read(request, DetokenizeBody)
    async with service.registry.use(body.model, ServedModel) as served:
        served.model.check_tokens(body.tokens)
        text = served.tokenizer.decode(body.tokens)
    return JSONResponse({"content": text, "prompt": text})  # llama.cpp's name, and vLLM's


async def props(request: Request) -> Response:
    """Describes the first language model and its default settings."""
    service = service_of(request)
    async with service.registry.use(None, ServedModel) as served:
        sampling, slots = SamplingParams(**served.sampling), served.engine.options.max_num_seqs
        names = ("temperature", "top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty")
        params = {name: getattr(sampling, name) for name in names}
        params["repeat_penalty"] = sampling.repetition_penalty
        context = served.context_length or 0
        return JSONResponse(
            {
                "default_generation_settings": {"n_ctx": context, "params": params},
                "total_slots": slots,
                "model_alias": served.name,
                "model_path": served.name,
                "chat_template": served.tokenizer.chat_template or "",
                "modalities": {"vision": "vision" in served.capabilities, "audio": False},
                "build_info": f"npu-llm {metadata.version('npu-llm')}",
                "is_sleeping": False,
            }
        )


async def _answer(request: Request, body: LlamaSamplingBody, prompt: Sequence[int]) -> Response:
    service = service_of(request)
    work = _Completion(body, len(prompt))
    return await service.answer(request, body, work.asked(prompt), work)


async def _tokens(served: ServedModel, prompt: str | Sequence[str | int]) -> list[int]:
    """Returns the tokens of a prompt, which may be a mix of texts and tokens."""
    if isinstance(prompt, str):
        return await served.encode(prompt)
    found: list[int] = []
    for part in prompt:
        if isinstance(part, str):
            found += await served.encode(part, special=not found)
        else:
            found.append(part)
    return found


class _Completion:
    """One request to /completion or /infill."""

    def __init__(self, body: LlamaSamplingBody, prompt_tokens: int) -> None:
        self._body = body
        self._prompt_tokens = prompt_tokens

    def asked(self, prompt: Sequence[int]) -> TextRequest:
        """Returns the request without its protocol."""
        body = self._body
        forms = []
        if (grammar := body.grammar) is not None:
            forms.append(lambda: Form.of_grammar(grammar))
        if body.json_schema is not None:
            forms += schema_forms("json_schema", body.json_schema, field="json_schema")
        most = body.max_tokens if body.max_tokens is not None else body.n_predict
        return TextRequest(
            prompts=[prompt],
            sampling=sampling_of(body, seed=None if body.seed == -1 else body.seed)
            | {"logit_bias": self._bias()},
            max_tokens=None if most < 0 else max(most, 1),
            ignores_ends=body.ignore_eos,
            uses_cache=body.cache_prompt,
            logprobs=body.n_probs or None,
            make_form=forms[0] if forms else None,
        )

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the response."""
        (choice,) = choices
        found = self._part(generation, choice.text, choice.tokens)
        return found | self._end(generation, choice.finish)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yields the parts of the answer."""
        finish = ""
        async for delta in generation.deltas():
            finish = delta.finish or finish
            if delta.text or delta.tokens:
                yield event(self._part(generation, delta.text, delta.tokens))
        yield event(self._part(generation, "", ()) | self._end(generation, finish))

    def _part(self, generation: Generation, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": [token.id for token in tokens] if self._body.return_tokens else [],
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": generation.usage().answer,
            "tokens_evaluated": self._prompt_tokens,
        }
        if self._body.n_probs:
            found["completion_probabilities"] = [
                {
                    **_probability(generation.served, token.id, token.logprob or 0.0),
                    "top_logprobs": [_probability(generation.served, *one) for one in token.top],
                }
                for token in tokens
            ]
        return found

    def _end(self, generation: Generation, finish: str) -> dict[str, Any]:
        (answer,) = generation.answers
        read_ms, written_ms = answer.read_s * 1e3, answer.written_s * 1e3
        usage = generation.usage()
        is_word = finish == "stop" and isinstance(answer.stop, str)
        kinds = {"length": "limit", "stop": "word" if is_word else "eos"}
        return {
            "stop": True,
            "model": generation.served.name,
            "stop_type": kinds.get(finish, "none"),
            "stopping_word": answer.stop if is_word else "",
            "truncated": False,
            "tokens_cached": usage.cached,
            "timings": {
                "prompt_n": usage.prompt - usage.cached,
                "prompt_ms": read_ms,
                "prompt_per_second": _rate(usage.prompt - usage.cached, read_ms),
                "predicted_n": usage.answer,
                "predicted_ms": written_ms,
                "predicted_per_second": _rate(usage.answer, written_ms),
            },
        }

    def _bias(self) -> dict[int, float]:
        given = self._body.logit_bias or {}
        found: dict[str, float] = {}
        for token, bias in given.items() if isinstance(given, dict) else given:
            if isinstance(bias, str) or bias is True:
                raise RequestError(
                    f"`logit_bias` must have numbers or false, got {bias!r:.40}. Change it.",
                    code="request-field",
                    parameter="logit_bias",
                )
            found[str(token)] = _MIN_BIAS if bias is False else bias
        return bias_of(found)


def _probability(served: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    text, content = token_text(served, token), list(served.token_bytes.of(token))
    return {"id": token, "token": text, "bytes": content, "logprob": max(logprob, -9999.0)}


def _rate(count: int, milliseconds: float) -> float:
    return count * 1e3 / milliseconds if milliseconds > 0 else 0.0

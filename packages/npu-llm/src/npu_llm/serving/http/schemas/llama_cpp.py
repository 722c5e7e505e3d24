"""llama.cpp's requests: the fields and bounds of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from npu_llm.serving.http.schemas.body import Body, Tokens

__all__ = ["InfillBody", "LlamaCompletionBody", "LlamaOptions", "LlamaSamplingBody"]

_Bias = float | Literal[False]
_Pair = Annotated[list[int | str | _Bias], Field(min_length=2, max_length=2)]


class LlamaOptions(Body):
    """Sampling parameters by llama.cpp's names, which Ollama shares."""

    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, allow_inf_nan=False)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None


class LlamaSamplingBody(LlamaOptions):
    """Options of an answer, named as in llama.cpp."""

    model: str | None = None
    n_predict: int = Field(-1, ge=-2, lt=1 << 31)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-1, lt=1 << 63)
    stream: bool = False
    logit_bias: dict[str, _Bias] | Annotated[list[_Pair], Field(max_length=1024)] | None = None
    n_probs: int = Field(0, ge=0, le=100)
    ignore_eos: bool = False
    return_tokens: bool = False
    cache_prompt: bool = True
    grammar: str | None = Field(None, max_length=1 << 20)
    json_schema: dict[str, Any] | None = None
    without_effect = {"id_slot": None, "n_keep": None, "t_max_predict_ms": (0,)}


class LlamaCompletionBody(LlamaSamplingBody):
    """The body of /completion."""

    prompt: str | Tokens | Annotated[list[str | int], Field(fail_fast=True)]


class _Extra(Body):
    filename: str = ""
    text: str


class InfillBody(LlamaSamplingBody):
    """The body of /infill: text between a beginning and an end."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[_Extra], Field(max_length=256)] | None = None
    prompt: str = ""

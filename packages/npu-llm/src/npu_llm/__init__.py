"""Language models on the npu device, with transformers' own generate()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_llm.errors import (
    CacheError,
    CaptureError,
    ContextError,
    LlmError,
    ModelError,
    OptionError,
)

if TYPE_CHECKING:
    from npu_llm.model import NPUModelForCausalLM

__all__ = [
    "CacheError",
    "CaptureError",
    "ContextError",
    "LlmError",
    "ModelError",
    "NPUModelForCausalLM",
    "OptionError",
]


def __getattr__(name: str) -> object:
    # transformers takes seconds to import; an error message should not wait for it.
    if name == "NPUModelForCausalLM":
        from npu_llm.model import NPUModelForCausalLM

        return NPUModelForCausalLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

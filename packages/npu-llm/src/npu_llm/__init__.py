"""Language models on the npu device, with transformers' own generate()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_llm.errors import (
    CacheError,
    CaptureError,
    ContextError,
    LlmError,
    MemoryNeedError,
    ModelError,
    OptionError,
    SessionError,
)

if TYPE_CHECKING:
    from npu_llm.chat.chat_session import ChatSession
    from npu_llm.chat.reply import Reply, ReplyStream
    from npu_llm.entries.exported import export
    from npu_llm.generation.loading import load
    from npu_llm.generation.model import NPUModelForCausalLM
    from npu_llm.generation.static_generation import (
        generate_with_static_shape,
        warm_up_decoder_model,
    )

__all__ = [
    "CacheError",
    "CaptureError",
    "ChatSession",
    "ContextError",
    "LlmError",
    "MemoryNeedError",
    "ModelError",
    "NPUModelForCausalLM",
    "OptionError",
    "Reply",
    "ReplyStream",
    "SessionError",
    "export",
    "generate_with_static_shape",
    "load",
    "warm_up_decoder_model",
]

_HOMES = {
    "ChatSession": "chat.chat_session",
    "NPUModelForCausalLM": "generation.model",
    "Reply": "chat.reply",
    "ReplyStream": "chat.reply",
    "export": "entries.exported",
    "generate_with_static_shape": "generation.static_generation",
    "load": "generation.loading",
    "warm_up_decoder_model": "generation.static_generation",
}


def __getattr__(name: str) -> object:
    # transformers takes seconds to import; an error message should not wait for it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

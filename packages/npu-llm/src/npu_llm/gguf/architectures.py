"""The table of GGUF architectures: one row for each, by ggml's name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from npu_llm.errors import ModelError
from npu_llm.gguf.dense import DENSE
from npu_llm.gguf.encoders import ENCODERS
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.mixtures import MIXTURES
from npu_llm.gguf.rows import Architecture
from npu_llm.gguf.states import STATES

__all__ = ["ARCHITECTURES", "find_architecture"]

ARCHITECTURES: Mapping[str, Architecture] = {**DENSE, **MIXTURES, **STATES, **ENCODERS}

# Names that stand for more than one class of transformers.
_VARIANTS: Mapping[str, Callable[[Keys], str | None]] = {
    "deci": lambda keys: "llama",
    "llama": lambda keys: "llama(experts)" if keys.number("expert_count", 0) else None,
    "olmo2": lambda keys: "olmo2(window)" if keys.number("attention.sliding_window", 0) else None,
    "deepseek2": lambda keys: (
        "deepseek2(sigmoid)" if keys.number("expert_gating_func", 0) == 2 else None
    ),
    "granitemoe": lambda keys: (
        "granitemoe(shared)" if keys.has_tensor("blk.*.ffn_up_shexp.weight") else None
    ),
}


def find_architecture(keys: Keys) -> Architecture:
    """Returns the row of a file's architecture.

    Raises:
        ModelError: [gguf-architecture] if the table has none.
    """
    name = keys.file.architecture
    choose = _VARIANTS.get(name)
    variant = None if choose is None else choose(keys)
    found = ARCHITECTURES.get(variant or name)
    if found is None:
        near = difflib.get_close_matches(name, ARCHITECTURES, n=3)
        raise ModelError(
            f"{keys.file.path}: its architecture must be one that npu-llm reads from GGUF files; "
            f"got {name!r}. {'Similar names: ' + ', '.join(near) + '. ' if near else ''}Use a "
            "checkpoint folder of the model.",
            code="gguf-architecture",
        )
    return found

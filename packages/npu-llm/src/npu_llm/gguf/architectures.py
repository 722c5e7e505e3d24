"""The table of GGUF architectures: one row per architecture, by ggml's name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from npu_llm.errors import ModelError
from npu_llm.gguf.dense import DENSE
from npu_llm.gguf.encoders import ENCODERS
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.latent import LATENT
from npu_llm.gguf.mixtures import MIXTURES
from npu_llm.gguf.rows import Architecture
from npu_llm.gguf.states import STATES

__all__ = ["ARCHITECTURES", "REFUSED", "find_architecture"]

ARCHITECTURES: Mapping[str, Architecture] = {
    **DENSE,
    **MIXTURES,
    **LATENT,
    **STATES,
    **ENCODERS,
    "deci": DENSE["llama"],
}

# Further architectures of llama.cpp, and the reasons that they are not supported.
REFUSED: Mapping[str, str] = {
    "chameleon": "transformers has it only as part of an image generation model",
    "jina-bert-v2": "transformers has no class for it",
    "minimax-01": "its linear attention compiles to a program that the comparison rejects",
    "mistral4": "AutoModelForCausalLM has no class for it",
    "neo-bert": "transformers has no class for it",
    "nomic-bert-moe": "transformers has no class for it",
    "phimoe": "llama.cpp weights its experts differently from transformers, so answers differ",
    "rwkv6": "transformers has RWKV 4 only",
    "rwkv7": "transformers has RWKV 4 only",
    "t5": "it is an encoder-decoder; the table has only the encoder (t5encoder)",
}

# Names that refer to more than one transformers class.
_VARIANTS: Mapping[str, Callable[[Keys], str | None]] = {
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
        ModelError: [gguf-architecture] if the table has no row for it.
    """
    name = keys.file.architecture
    choose = _VARIANTS.get(name)
    variant = None if choose is None else choose(keys)
    found = ARCHITECTURES.get(variant or name)
    if found is None:
        near = [] if name in REFUSED else difflib.get_close_matches(name, ARCHITECTURES, n=3)
        why = f"; {REFUSED[name]}" if name in REFUSED else ""
        raise ModelError(
            f"`{keys.file.path}` must have an architecture that npu-llm reads from GGUF files, "
            f"got {name!r}{why}. {'Similar names: ' + ', '.join(near) + '. ' if near else ''}Use "
            "a checkpoint folder of the model.",
            code="gguf-architecture",
        )
    return found

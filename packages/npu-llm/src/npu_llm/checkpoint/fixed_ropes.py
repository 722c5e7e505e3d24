"""Fixes rotary frequencies that transformers would compute from a text's length."""

from __future__ import annotations

from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

__all__ = ["fix_ropes"]

_LONG = "longrope"


def fix_ropes(model: Any, *, is_long: bool) -> None:
    """Makes a model's rotary embeddings independent of the text's length, in place.

    "dynamic" ones (NTK) keep their frequencies for texts up to max_position_embeddings. LongRoPE
    uses its short or its long factors.

    Args:
        model: the transformers model.
        is_long: whether LongRoPE uses its long factors.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and hasattr(module, "inv_freq"):
            if _fix(module, kinds, None, is_long):
                module.rope_type = "default"
        elif isinstance(kinds, dict):
            fixed = {layer: _fix(module, kind, layer, is_long) for layer, kind in kinds.items()}
            module.rope_type = {
                layer: "default" if fixed[layer] else kind for layer, kind in kinds.items()
            }


def _fix(module: Any, kind: str, layer: str | None, is_long: bool) -> bool:
    """Fixes one kind of a module's frequencies; returns whether they depended on the length."""
    if "dynamic" in kind:
        return True
    if kind != _LONG:
        return False
    if is_long:
        config = module.config
        longest = config.max_position_embeddings
        more = {} if layer is None else {"layer_type": layer}
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=longest, **more)
        getattr(module, "inv_freq" if layer is None else f"{layer}_inv_freq").copy_(frequencies)
    return True

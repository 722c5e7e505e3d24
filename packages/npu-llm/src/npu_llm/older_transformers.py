"""Makes transformers 4.57 read, trace and run models as version 5 does.

Has no effect under transformers 5.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import transformers
from transformers import masking_utils

__all__ = ["allow_host_tokens", "as_in_newer", "show_tokenizer_failure"]

_IS_OLDER = int(transformers.__version__.partition(".")[0]) < 5

_MAKE_MASK = "_prepare_4d_causal_attention_mask_with_cache_position"
# Mixtures of experts that share one routing: the largest values of a softmax.
_ROUTED_BLOCKS = (
    "MixtralSparseMoeBlock",
    "OlmoeSparseMoeBlock",
    "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeSparseMoeBlock",
)


@contextmanager
def as_in_newer(model: torch.nn.Module) -> Iterator[None]:
    """Makes transformers 4 compute masks and experts as 5 does while a model is traced.

    Version 4 creates masks with vmap in a special mode or by writing into slices of them. It also
    omits masks or runs experts depending on values. None of this can be traced. Replacements are
    set on the model's modules, not on their classes.
    """
    with ExitStack() as stack:
        if _IS_OLDER:
            for owner, name, replacement in _patches(model):
                stack.enter_context(_replaced(owner, name, replacement))
        yield


@contextmanager
def allow_host_tokens() -> Iterator[None]:
    """Suppresses transformers 4's warning about tokens on the CPU, which version 5 accepts."""
    if not _IS_OLDER:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"You are calling \.generate\(\) with the `input_ids`")
        yield


@contextmanager
def show_tokenizer_failure() -> Iterator[None]:
    """Makes an unreadable tokenizer file raise a ValueError with the reason, as in version 5.

    The tokenizer's reader raises a plain Exception, which transformers 4 replaces by an error about
    protobuf if that is not installed.
    """
    try:
        yield
    except Exception as failure:
        reason = failure.__context__ if isinstance(failure, ImportError) else failure
        if _IS_OLDER and type(reason) is Exception:
            raise ValueError(str(reason)) from failure
        raise


def _broadcast(mask_function: Callable[..., Any], bh_indices: bool = True) -> Callable[..., Any]:
    """Returns a function of the batch, head, query and key indices that gives the whole mask."""

    def whole(
        batch: torch.Tensor | None, head: torch.Tensor | None, query: Any, key: Any
    ) -> torch.Tensor:
        if not bh_indices or batch is None or head is None:
            return torch.as_tensor(mask_function(batch, head, query[:, None], key[None, :]))
        mask: torch.Tensor = mask_function(
            batch[:, None, None, None],
            head[None, :, None, None],
            query[None, None, :, None],
            key[None, None, None, :],
        )
        return mask.expand(batch.shape[0], head.shape[0], query.shape[0], key.shape[0])

    return whole


def _patches(model: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Yields owner, attribute and replacement for everything that cannot be traced."""
    from transformers.modeling_attn_mask_utils import AttentionMaskConverter

    yield masking_utils, "_vmap_for_bhqkv", _broadcast
    yield masking_utils, "TransformGetItemToIndex", nullcontext
    yield AttentionMaskConverter, "_ignore_causal_mask_sdpa", staticmethod(lambda *_, **__: False)
    for module in model.modules():
        if hasattr(module, _MAKE_MASK) and not _has_window(module):
            yield module, _MAKE_MASK, _causal_mask
        if type(module).__name__ in _ROUTED_BLOCKS:
            yield module, "forward", partial(_run_experts, module)


def _has_window(module: Any) -> bool:
    """Whether a module's masks have a sliding window: their functions then read the config."""
    looks = "config" in inspect.signature(getattr(module, _MAKE_MASK)).parameters
    return looks and bool(getattr(module.config, "sliding_window", None))


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replaces an object's attribute inside the block; an inherited one is shadowed."""
    missing = object()
    original = vars(owner).get(name, missing)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if original is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _causal_mask(
    attention_mask: torch.Tensor,
    *,
    target_length: int,
    dtype: torch.dtype,
    cache_position: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """Returns a mask to add to scores, (batch, 1, tokens, target_length): past keys, no padding.

    The padding mask is indexed by key numbers, so that these can become an input.
    """
    keys = torch.arange(target_length, device=cache_position.device)
    so_far = keys[None, :] <= cache_position[:, None]
    # A slow import; already loaded when a model is traced.
    from npu_compiler.lowering.context import MASKED

    seen = so_far[None, None] & attention_mask[:, keys].bool()[:, None, None, :]
    return torch.where(seen, 0.0, MASKED).to(dtype)


def _run_experts(block: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs every expert of a block on all tokens, weighted with 0 if it was not chosen.

    This is more work than running the chosen experts, but the choice depends on values. Each expert
    has separate matrices here; stacking them would double their memory.

    Args:
        block: with `gate`, `experts` and `top_k`; without `norm_topk_prob` it normalizes. A
            `shared_expert` sees every token, weighted by `shared_expert_gate`.
        hidden_states: (batch, tokens, hidden).

    Returns:
        The result, shaped as hidden_states, and the gate's logits (batch * tokens, experts).
    """
    states = hidden_states.reshape(-1, hidden_states.shape[-1])
    logits = block.gate(states)
    values, chosen = torch.topk(torch.softmax(logits, -1, torch.float), block.top_k, dim=-1)
    if getattr(block, "norm_topk_prob", True):
        values = values / values.sum(-1, keepdim=True)
    shares = torch.zeros_like(logits).scatter(-1, chosen, values.to(states.dtype))
    result = torch.zeros_like(states)
    for index, expert in enumerate(block.experts):
        result = result + expert(states) * shares[:, index, None]
    if hasattr(block, "shared_expert"):
        share = torch.sigmoid(block.shared_expert_gate(states))
        result = result + share * block.shared_expert(states)
    return result.reshape(hidden_states.shape), logits

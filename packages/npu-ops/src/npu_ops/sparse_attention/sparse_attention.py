"""`torch.ops.npu.sparse_attention(x, ...)`: a sparse attention layer that updates its caches.

    c = rms_norm(x @ weight_dq) * gamma_cq
    q = c @ weight_uq_qr, per head [without position | rotary]; the first part @ weight_uk
    [latent | k_rope] = x @ weight_dkv_kr; latent = rms_norm(latent) * gamma_ckv; k_rope rotated
    q_i = rotated c @ weight_idx_qb;  k_i = rotated layer_norm(x @ weight_idx_k)
    latent, k_rope and k_i are written into the caches at cache_index
    indices = lightning_indexer(q_i, idx_cache, x @ weight_idx_proj)
    y = sparse_flash_attention(q, kv_cache, kv_cache, indices), with the rotary parts

Source: DeepSeek-AI, DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse
Attention, 2025; DeepSeek-AI, DeepSeek-V2, 2024, section 2.1 (latent attention with absorbed
weights).

x: (batch, length, hidden). Weights are (inputs, outputs): weight_dq (hidden, query rank),
weight_uq_qr (query rank, heads * (plain + rope)), weight_uk (heads, plain, latent), weight_dkv_kr
(hidden, latent + rope), weight_idx_qb (query rank, index heads * index width), weight_idx_k
(hidden, index width), weight_idx_proj (hidden, index heads); gamma_cq (query rank,), gamma_ckv
(latent,), gamma_idx_k and beta_idx_k (index width,). cos, sin: (batch, length, rope / 2). kv_cache:
(pages, positions, 1, latent), kr_cache (..., rope), idx_cache (..., index width), also views of one
tensor without shared elements. All of one dtype, float32 or bfloat16. cache_index: (batch, length),
int32 or int64: the slot `page * positions + position` of each token, or -1 to skip a token.
block_table and lengths as in `npu_ops.sparse_attention`; actual_seq_lengths_kv includes the new
tokens. y: (batch, length, heads, latent).

Implementations differ in the softmax scale (DeepSeek: (plain + rope)**-0.5 with a factor of YaRN's)
and in which features rotate as a pair: neighbours if rope_interleaved, or idx_rope_interleaved for
the indexer, else i and half + i. Of the indexer's features the first rope ones rotate.

Not differentiable, because the caches are written in place.

Raises ValueError: [op-shape], [op-dtype], [op-index], [op-alias] and those of the two ops, before
anything is written; RuntimeError: [op-gradient] if a gradient is requested.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from npu_ops.fused import rms_norm, rotary_embedding
from npu_ops.fused.library import define, implement
from npu_ops.sparse_attention import lightning_indexer, sparse_flash_attention
from npu_ops.sparse_attention.caches import (
    check_addressing,
    check_caches,
    rows_written,
    write_rows,
)
from npu_ops.sparse_attention.layer import Layer, check_layer

__all__ = ["functional", "reference"]

define(
    "sparse_attention(Tensor x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, "
    "Tensor weight_dkv_kr, Tensor gamma_cq, Tensor gamma_ckv, Tensor weight_idx_qb, "
    "Tensor weight_idx_k, Tensor gamma_idx_k, Tensor beta_idx_k, Tensor weight_idx_proj, "
    "Tensor cos, Tensor sin, Tensor cache_index, Tensor(a!) kv_cache, Tensor(b!) kr_cache, "
    "Tensor(c!) idx_cache, Tensor block_table, Tensor actual_seq_lengths_kv, float scale_value, "
    "*, Tensor? actual_seq_lengths_query=None, int sparse_count=2048, int sparse_mode=3, "
    "bool rope_interleaved=True, bool idx_rope_interleaved=False, float eps=1e-05, "
    "float idx_eps=1e-06) -> Tensor"
)


@dataclass(frozen=True)
class _Parts:
    """Ops of the block, or their references; `write` returns the cache."""

    rms_norm: Callable[..., torch.Tensor]
    rotary: Callable[..., torch.Tensor]
    indexer: Callable[..., torch.Tensor]
    attention: Callable[..., torch.Tensor]
    write: Callable[..., torch.Tensor] = write_rows


_Caches = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _compose(layer: Layer, parts: _Parts) -> tuple[torch.Tensor, _Caches]:
    batch, length = layer.x.shape[:2]
    latent, plain, rope = layer.latent, layer.plain, layer.rope

    def rotated(features: torch.Tensor, interleaved: bool) -> torch.Tensor:
        heads_first = features.transpose(1, 2)
        turned = parts.rotary(heads_first, layer.cos, layer.sin, interleaved=interleaved)
        return turned.transpose(1, 2)

    c = parts.rms_norm(layer.x @ layer.weight_dq, layer.gamma_cq, layer.eps)
    q = (c @ layer.weight_uq_qr).view(batch, length, layer.heads, plain + rope)
    query = torch.einsum("bshd,hdl->bshl", q[..., :plain], layer.weight_uk)
    query_rope = rotated(q[..., plain:], layer.rope_interleaved)

    kv = layer.x @ layer.weight_dkv_kr
    new_latent = parts.rms_norm(kv[..., :latent].contiguous(), layer.gamma_ckv, layer.eps)
    new_rope = rotated(kv[..., latent:].unsqueeze(2), layer.rope_interleaved)

    index_heads, index_width = layer.weight_idx_proj.shape[1], layer.weight_idx_k.shape[1]
    q_i = (c @ layer.weight_idx_qb).view(batch, length, index_heads, index_width)
    k_i = torch.nn.functional.layer_norm(
        layer.x @ layer.weight_idx_k,
        (index_width,),
        layer.gamma_idx_k,
        layer.beta_idx_k,
        layer.idx_eps,
    )
    q_i = rotated(q_i, layer.idx_rope_interleaved)
    k_i = rotated(k_i.unsqueeze(2), layer.idx_rope_interleaved)

    kv_cache = parts.write(layer.kv_cache, layer.cache_index, new_latent)
    kr_cache = parts.write(layer.kr_cache, layer.cache_index, new_rope)
    idx_cache = parts.write(layer.idx_cache, layer.cache_index, k_i)

    common = {
        "block_table": layer.block_table,
        "actual_seq_lengths_query": layer.actual_seq_lengths_query,
        "sparse_mode": layer.sparse_mode,
    }
    indices = parts.indexer(
        q_i,
        idx_cache,
        layer.x @ layer.weight_idx_proj,
        actual_seq_lengths_key=layer.actual_seq_lengths_kv,
        layout_key="PA_BSND",
        sparse_count=layer.sparse_count,
        **common,
    )
    y = parts.attention(
        query,
        kv_cache,
        kv_cache,
        indices,
        layer.scale_value,
        1,
        actual_seq_lengths_kv=layer.actual_seq_lengths_kv,
        query_rope=query_rope,
        key_rope=kr_cache,
        layout_kv="PA_BSND",
        **common,
    )
    return y, (kv_cache, kr_cache, idx_cache)


def reference(*args: Any, **options: Any) -> torch.Tensor:
    """Computes the op in plain torch, with its arguments; writes the caches as well."""
    parts = _Parts(
        rms_norm.reference,
        rotary_embedding.reference,
        lightning_indexer.reference,
        sparse_flash_attention.reference,
    )
    return _compose(Layer.of(args, options), parts)[0]


def functional(*args: Any, **options: Any) -> tuple[torch.Tensor, _Caches]:
    """Decomposes the op into the ops it consists of, for a compiler that has them.

    The caches are not written; the new caches are returned: (y, (kv_cache, kr_cache, idx_cache)).
    No size depends on values.
    """
    ops = torch.ops.npu
    parts = _Parts(
        ops.rms_norm,
        ops.rotary_embedding,
        ops.lightning_indexer,
        ops.sparse_flash_attention,
        rows_written,
    )
    return _compose(Layer.of(args, options), parts)


def _kernel(*args: Any, **options: Any) -> torch.Tensor:
    layer = Layer.of(args, options)
    check_layer(layer)
    check_addressing(layer)
    check_caches(layer)
    ops = torch.ops.npu
    parts = _Parts(
        ops.rms_norm, ops.rotary_embedding, ops.lightning_indexer, ops.sparse_flash_attention
    )
    return _compose(layer, parts)[0]


def _fake(*args: Any, **options: Any) -> torch.Tensor:
    layer = Layer.of(args, options)
    check_layer(layer)
    check_addressing(layer)
    return layer.x.new_empty(*layer.x.shape[:2], layer.heads, layer.latent)


def _autograd(keys: Any, *args: Any, **options: Any) -> torch.Tensor:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        raise RuntimeError(
            "npu.sparse_attention: it has no gradient, since the caches are written in place, got "
            "an argument that requires one. Call it under torch.no_grad(). [op-gradient]"
        )
    with torch._C._AutoDispatchBelowAutograd():
        op = torch.ops.npu.sparse_attention.default
        result: torch.Tensor = op.redispatch(
            keys & torch._C._after_autograd_keyset, *args, **options
        )
    return result


def _versions(keys: Any, *args: Any, **options: Any) -> torch.Tensor:
    # Bump the caches' versions, because they were written.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        op = torch.ops.npu.sparse_attention.default
        result: torch.Tensor = op.redispatch(
            keys & torch._C._after_ADInplaceOrView_keyset, *args, **options
        )
    layer = Layer.of(args, options)
    torch.autograd.graph.increment_version((layer.kv_cache, layer.kr_cache, layer.idx_cache))
    return result


implement("sparse_attention", "CPU", _kernel)
implement("sparse_attention", "Meta", _fake)
implement("sparse_attention", "Autograd", _autograd)
implement("sparse_attention", "ADInplaceOrView", _versions)

"""Arguments of `torch.ops.npu.sparse_attention` as one value, and checks of their shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

__all__ = ["Layer", "check_layer"]

OP = "npu.sparse_attention"


@dataclass(frozen=True)
class Layer:
    """The arguments in the schema's order; the op's docstring has their shapes."""

    x: torch.Tensor
    weight_dq: torch.Tensor
    weight_uq_qr: torch.Tensor
    weight_uk: torch.Tensor
    weight_dkv_kr: torch.Tensor
    gamma_cq: torch.Tensor
    gamma_ckv: torch.Tensor
    weight_idx_qb: torch.Tensor
    weight_idx_k: torch.Tensor
    gamma_idx_k: torch.Tensor
    beta_idx_k: torch.Tensor
    weight_idx_proj: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    cache_index: torch.Tensor
    kv_cache: torch.Tensor
    kr_cache: torch.Tensor
    idx_cache: torch.Tensor
    block_table: torch.Tensor
    actual_seq_lengths_kv: torch.Tensor
    scale_value: float
    actual_seq_lengths_query: torch.Tensor | None = None
    sparse_count: int = 2048
    sparse_mode: int = 3
    rope_interleaved: bool = True
    idx_rope_interleaved: bool = False
    eps: float = 1e-5
    idx_eps: float = 1e-6

    @classmethod
    def of(cls, args: Sequence[Any], options: Mapping[str, Any]) -> "Layer":
        """Returns the arguments of one call."""
        return cls(*args, **options)

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.weight_uk.shape[0]

    @property
    def plain(self) -> int:
        """Features of a query head without rotary embedding."""
        return self.weight_uk.shape[1]

    @property
    def latent(self) -> int:
        """Width of the latent cache."""
        return self.weight_uk.shape[2]

    @property
    def rope(self) -> int:
        """Rotary features of a query head."""
        return self.kr_cache.shape[3]


INTEGERS = ("cache_index", "block_table", "actual_seq_lengths_kv", "actual_seq_lengths_query")
RANKS = {
    "x": 3,
    "weight_dq": 2,
    "weight_uq_qr": 2,
    "weight_uk": 3,
    "weight_dkv_kr": 2,
    "weight_idx_qb": 2,
    "weight_idx_k": 2,
    "weight_idx_proj": 2,
    "kv_cache": 4,
    "kr_cache": 4,
    "idx_cache": 4,
}


def check_layer(layer: Layer) -> None:
    """Checks shapes and dtypes, but not values.

    Raises:
        ValueError: [op-shape] and [op-dtype].
    """
    _check_dtypes(layer)
    for name, rank in RANKS.items():
        shape = tuple(getattr(layer, name).shape)
        if len(shape) != rank:
            raise ValueError(
                f"{OP}: `{name}` must have {rank} axes, got {shape}. Add or flatten axes with "
                ".reshape(). [op-shape]"
            )
    for name, expected in _shapes(layer).items():
        shape = tuple(getattr(layer, name).shape)
        if shape != expected:
            raise ValueError(
                f"{OP}: `{name}` must be {expected} for the other arguments, got {shape}. Pass the "
                "weights and caches of one layer. [op-shape]"
            )
    index_width = layer.weight_idx_k.shape[1]
    if layer.rope % 2 or layer.rope > index_width:
        raise ValueError(
            f"{OP}: rotary features must be even, and no more than the indexer has, got kr_cache "
            f"{tuple(layer.kr_cache.shape)}, weight_idx_k {tuple(layer.weight_idx_k.shape)}. Pass "
            "the caches of one layer. [op-shape]"
        )


def _shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    batch, length, hidden = layer.x.shape
    rank, index_width = layer.weight_dq.shape[1], layer.weight_idx_k.shape[1]
    index_heads = layer.weight_idx_proj.shape[1]
    page = tuple(layer.kv_cache.shape[:2])
    return {
        "weight_dq": (hidden, rank),
        "weight_uq_qr": (rank, layer.heads * (layer.plain + layer.rope)),
        "weight_dkv_kr": (hidden, layer.latent + layer.rope),
        "gamma_cq": (rank,),
        "gamma_ckv": (layer.latent,),
        "weight_idx_qb": (rank, index_heads * index_width),
        "weight_idx_k": (hidden, index_width),
        "gamma_idx_k": (index_width,),
        "beta_idx_k": (index_width,),
        "weight_idx_proj": (hidden, index_heads),
        "cos": (batch, length, layer.rope // 2),
        "sin": (batch, length, layer.rope // 2),
        "cache_index": (batch, length),
        "kv_cache": (*page, 1, layer.latent),
        "kr_cache": (*page, 1, layer.rope),
        "idx_cache": (*page, 1, index_width),
    }


def _check_dtypes(layer: Layer) -> None:
    if layer.x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"{OP}: `x` must be float32 or bfloat16, got {layer.x.dtype}. Convert it with .to(). "
            "[op-dtype]"
        )
    for field in fields(layer):
        value = getattr(layer, field.name)
        if not isinstance(value, torch.Tensor):
            continue
        if field.name in INTEGERS:
            if value.dtype not in (torch.int32, torch.int64):
                raise ValueError(
                    f"{OP}: `{field.name}` must be int32 or int64, got {value.dtype}. Convert it "
                    "with .to(). [op-dtype]"
                )
        elif value.dtype is not layer.x.dtype:
            raise ValueError(
                f"{OP}: `{field.name}` must have the dtype of `x`, got {value.dtype}, x "
                f"{layer.x.dtype}. Convert one with .to(). [op-dtype]"
            )

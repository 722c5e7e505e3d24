"""`torch.ops.npu.sparse_flash_attention(query, key, value, sparse_indices, ...)`: sparse attention.

    score = (query . key + query_rope . key_rope) * scale_value      over the selected positions
    y = softmax(score) @ value

sparse_indices count blocks of sparse_block_size positions; index i selects the positions from `i *
sparse_block_size` on, and -1 selects none. Positions that the query does not see are masked. A
position selected twice counts twice. A query without a valid key gives 0.

Source: DeepSeek-AI, DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse
Attention, 2025, equation 2; Dao et al., FlashAttention, 2022 (the softmax in pieces).

query: (batch, length, heads, width) or (tokens, heads, width); key and value: the latent cache, one
head each, in a layout of `npu_ops.sparse_attention`, also two views of one tensor; query_rope,
key_rope: the same with another width, both or neither. All of one dtype, float32 or
bfloat16. sparse_indices: (batch, length, 1, count) or (tokens, 1, count), int32. y: the query's
shape with the width of value. Scores, softmax and sums are float32. Differentiable in query, key,
value, query_rope and key_rope; backward recomputes the scores of the selection.

Raises ValueError: [op-shape], [op-dtype], [op-layout], [op-value], [op-lengths], [op-block-table]
and [op-index] for invalid arguments, before anything is read.

Kernel and fake: csrc/sparse_attention/sparse_flash_attention.cpp.
"""

from dataclasses import dataclass
from typing import Any

import torch

from npu_ops.fused.library import define, implement
from npu_ops.sparse_attention.caches import address, flat_rows

__all__ = ["gradients", "reference"]

define(
    "sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "float scale_value, int sparse_block_size, *, Tensor? block_table=None, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None, "
    'Tensor? query_rope=None, Tensor? key_rope=None, str layout_query="BSND", '
    'str layout_kv="BSND", int sparse_mode=3) -> Tensor'
)

Gradients = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None
]


@dataclass(frozen=True)
class _Selection:
    """The keys and values that each query row attends to, widened.

    Attributes:
        query: (rows, heads, width with rope).
        key: (rows, positions, width with rope), 0 if not selected.
        value: (rows, positions, value width), 0 if not selected.
        shares: (rows, heads, positions), the softmax; 0 if a row has no valid key.
        at: (rows, positions), flat rows of the caches.
        is_valid: (rows, positions).
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    shares: torch.Tensor
    at: torch.Tensor
    is_valid: torch.Tensor


def _select(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    sparse_block_size: int,
    *,
    block_table: torch.Tensor | None,
    actual_seq_lengths_query: torch.Tensor | None,
    actual_seq_lengths_kv: torch.Tensor | None,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
    layout_query: str,
    layout_kv: str,
    sparse_mode: int,
) -> _Selection:
    addressing = address(
        query,
        key,
        query_lengths=actual_seq_lengths_query,
        key_lengths=actual_seq_lengths_kv,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_kv,
        sparse_mode=sparse_mode,
    )
    work = torch.float64 if query.dtype is torch.float64 else torch.float32
    heads = query.shape[-2]
    blocks = sparse_indices.reshape(-1, sparse_indices.shape[-1], 1).to(torch.int64)
    positions = blocks * sparse_block_size + torch.arange(sparse_block_size, device=query.device)
    is_valid = (blocks >= 0) & (positions < addressing.visible.reshape(-1, 1, 1))
    positions, is_valid = positions.flatten(1), is_valid.flatten(1)
    at = addressing.flat(torch.where(is_valid, positions, 0))
    at = torch.where(is_valid, at, 0)

    def rows_of(tensor: torch.Tensor) -> torch.Tensor:
        rows = flat_rows(tensor)
        if rows.shape[0] == 0:
            return rows.new_zeros(*at.shape, rows.shape[1], dtype=work)
        return torch.where(is_valid.unsqueeze(-1), rows[at].to(work), 0)

    q, k = query.reshape(-1, heads, query.shape[-1]).to(work), rows_of(key)
    if query_rope is not None and key_rope is not None:
        rope = query_rope.reshape(-1, heads, query_rope.shape[-1]).to(work)
        q, k = torch.cat([q, rope], -1), torch.cat([k, rows_of(key_rope)], -1)
    has_any = is_valid.any(-1, keepdim=True)
    q = torch.where(has_any.unsqueeze(-1), q, 0)
    scores = q @ k.mT * scale_value
    scores = scores.masked_fill((~is_valid & has_any).unsqueeze(1), -torch.inf)
    shares = scores.softmax(-1) * has_any.unsqueeze(1)
    return _Selection(q, k, rows_of(value), shares, at, is_valid)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    sparse_block_size: int,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
) -> torch.Tensor:
    """Computes the op in plain torch; also float64."""
    selection = _select(
        query,
        key,
        value,
        sparse_indices,
        scale_value,
        sparse_block_size,
        block_table=block_table,
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_kv=actual_seq_lengths_kv,
        query_rope=query_rope,
        key_rope=key_rope,
        layout_query=layout_query,
        layout_kv=layout_kv,
        sparse_mode=sparse_mode,
    )
    y = selection.shares @ selection.value
    return y.reshape(*query.shape[:-1], value.shape[-1]).to(query.dtype)


def gradients(grad: torch.Tensor, arguments: dict[str, Any]) -> Gradients:
    """Returns gradients of query, key, value, query_rope and key_rope; the last two may be None.

    Dao et al., FlashAttention, 2022, appendix B.2, over the selection.

    Args:
        grad: gradient of the result.
        arguments: every argument of the op, by name.
    """
    selection = _select(**arguments)
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    shares, width = selection.shares, query.shape[-1]
    grad = grad.reshape(*shares.shape[:2], value.shape[-1]).to(shares.dtype)
    grad_shares = grad @ selection.value.mT
    along = (grad_shares * shares).sum(-1, keepdim=True)
    grad_scores = shares * (grad_shares - along) * arguments["scale_value"]
    grad_query = grad_scores @ selection.key
    grad_key = grad_scores.mT @ selection.query
    key_rope, query_rope = arguments["key_rope"], arguments["query_rope"]

    def given_back(to: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Scatters and adds the rows of the selection to their source rows."""
        total = rows.new_zeros(flat_rows(to).shape)
        if total.shape[0]:
            kept = torch.where(selection.is_valid.unsqueeze(-1), rows, 0)
            total = total.index_add(0, selection.at.flatten(), kept.flatten(0, 1))
        return total.reshape(to.shape).to(to.dtype)

    return (
        grad_query[..., :width].reshape(query.shape).to(query.dtype),
        given_back(key, grad_key[..., :width]),
        given_back(value, shares.mT @ grad),
        None
        if query_rope is None
        else grad_query[..., width:].reshape(query_rope.shape).to(query_rope.dtype),
        None if key_rope is None else given_back(key_rope, grad_key[..., width:]),
    )


# Arguments in the schema's order; autograd must also see the keyword-only tensors.
_DEFAULTS: dict[str, Any] = {
    "block_table": None,
    "actual_seq_lengths_query": None,
    "actual_seq_lengths_kv": None,
    "query_rope": None,
    "key_rope": None,
    "layout_query": "BSND",
    "layout_kv": "BSND",
    "sparse_mode": 3,
}
_NAMES = (
    *("query", "key", "value", "sparse_indices", "scale_value", "sparse_block_size"),
    *_DEFAULTS,
)
_DIFFERENTIABLE = ("query", "key", "value", "query_rope", "key_rope")


def _below_autograd(keys: Any, arguments: dict[str, Any]) -> torch.Tensor:
    given = dict(arguments)
    positional = [given.pop(name) for name in _NAMES[: -len(_DEFAULTS)]]
    with torch._C._AutoDispatchBelowAutograd():
        op = torch.ops.npu.sparse_flash_attention.default
        below = keys & torch._C._after_autograd_keyset
        result: torch.Tensor = op.redispatch(below, *positional, **given)
    return result


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Any, *values: Any) -> torch.Tensor:
        arguments = dict(zip(_NAMES, values, strict=True))
        tensors = {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}
        ctx.save_for_backward(*tensors.values())
        ctx.tensor_names = tuple(tensors)
        ctx.options = {k: v for k, v in arguments.items() if k not in tensors}
        return _below_autograd(keys, arguments)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = dict(zip(ctx.tensor_names, ctx.saved_tensors, strict=True))
        found = gradients(grad, ctx.options | saved)
        by_name = dict(zip(_DIFFERENTIABLE, found, strict=True))
        needed = zip(_NAMES, ctx.needs_input_grad[1:], strict=True)
        return (None, *[by_name[name] if is_needed else None for name, is_needed in needed])


def _autograd(keys: Any, *values: Any, **options: Any) -> torch.Tensor:
    # The dispatcher omits arguments that have their defaults.
    positional = dict(zip(_NAMES, values, strict=False))
    arguments = positional | _DEFAULTS | options
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments.values()):
        result: torch.Tensor = _Differentiable.apply(keys, *[arguments[n] for n in _NAMES])  # type: ignore[no-untyped-call]
        return result
    return _below_autograd(keys, arguments)


implement("sparse_flash_attention", "Autograd", _autograd)

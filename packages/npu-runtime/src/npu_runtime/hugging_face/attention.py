"""Flash attention's calls, as transformers makes them, by torch's attention."""

from typing import Any

import torch

from npu_runtime.errors import InputError

__all__ = ["attend", "causal_mask", "flash_attn_func", "flash_attn_varlen_func"]

Window = tuple[int, int]
_NO_WINDOW = (-1, -1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scale: float | None,
    dropout_p: float,
) -> torch.Tensor:
    """Torch's attention; heads of k and v are shared where q has more.

    Args:
        q: (batch, heads, queries, channels).
        k: (batch, heads or a divisor, keys, channels).
        v: as k.
        mask: boolean, of the positions that are seen; None for all.
        scale: factor of the products; None for one over the root of the channels.
        dropout_p: probability of dropout.
    """
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, dropout_p, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def causal_mask(
    queries: int, keys: int, *, offset: int, device: torch.device, window: Window = (-1, 0)
) -> torch.Tensor:
    """Which keys each query sees, as booleans of shape (queries, keys).

    Args:
        queries: how many there are.
        keys: how many there are.
        offset: position of the first query among the keys.
        device: where the mask is made.
        window: how many positions before and behind its own a query sees; -1 for all.
    """
    own = torch.arange(queries, device=device)[:, None] + offset
    others = torch.arange(keys, device=device)[None, :]
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
    before, behind = window
    if before >= 0:
        mask = mask & (others >= own - before)
    if behind >= 0:
        mask = mask & (others <= own + behind)
    return mask


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """Attention within each row of a batch; causal attention is aligned at the last positions.

    Args:
        q: (batch, queries, heads, channels).
        k: (batch, keys, heads or a divisor, channels).
        v: as k.
        dropout_p: probability of dropout.
        softmax_scale: factor of the products; None for one over the root of the channels.
        causal: whether a query sees no position behind its own.
        window_size: how many positions before and behind its own a query sees; -1 for all.
        s_aux: must be None.
        unused: hints to kernels, such as the longest sequence.

    Raises:
        InputError: attention sinks are given (code ``ascend-call``).
    """
    if s_aux is not None:
        raise InputError(
            "flash_attention_2 on npu: attention sinks (s_aux) are not supported. "
            'Load the model with attn_implementation="eager".',
            code="ascend-call",
        )
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    window = (window_size[0], 0) if causal else window_size
    mask = None
    if window != _NO_WINDOW:
        offset = k.shape[2] - q.shape[2]
        mask = causal_mask(q.shape[2], k.shape[2], offset=offset, device=q.device, window=window)
    return attend(q, k, v, mask=mask, scale=softmax_scale, dropout_p=dropout_p).transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """The same for sequences of several lengths, one behind the other.

    Args:
        q: (queries of all sequences, heads, channels).
        k: (keys of all sequences, heads or a divisor, channels).
        v: as k.
        cu_seqlens_q: (sequences + 1), where each begins and the last ends.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: changes nothing.
        max_seqlen_k: changes nothing.
        dropout_p: as in flash_attn_func.
        softmax_scale: as in flash_attn_func.
        causal: as in flash_attn_func.
        window_size: as in flash_attn_func.
        s_aux: must be None.
        unused: hints to kernels.
    """
    outputs = []
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for index in range(len(ends_q) - 1):
        at_q = slice(ends_q[index], ends_q[index + 1])
        at_k = slice(ends_k[index], ends_k[index + 1])
        outputs.append(
            flash_attn_func(
                q[None, at_q],
                k[None, at_k],
                v[None, at_k],
                dropout_p,
                softmax_scale,
                causal,
                window_size,
                s_aux,
            )[0]
        )
    return torch.cat(outputs)

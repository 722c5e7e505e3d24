"""Implements, with torch's functions, the torch_npu calls that Hugging Face's libraries make.

This module replaces torch_npu inside those libraries only.
"""

from typing import Any, NoReturn

import torch

from npu_runtime.errors import InputError

__all__ = [
    "attend",
    "causal_mask",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "npu_fusion_attention",
    "npu_geglu",
    "npu_rms_norm",
]

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
    """Torch's attention; heads of k and v are shared if q has more.

    Args:
        q: (batch, heads, queries, channels).
        k: (batch, heads or a divisor, keys, channels).
        v: as k.
        mask: boolean, True for visible positions; None for all.
        scale: scale of the products; None for 1 / sqrt(channels).
        dropout_p: probability of dropout.
    """
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, dropout_p, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def causal_mask(
    queries: int, keys: int, *, offset: int, device: torch.device, window: Window = (-1, 0)
) -> torch.Tensor:
    """Returns a boolean mask (queries, keys) of the visible keys; the first query is at `offset`.

    The window is the number of positions before and after its own that a query sees; -1 for all.
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
        softmax_scale: scale of the products; None for 1 / sqrt(channels).
        causal: whether a query sees no position after its own.
        window_size: number of positions before and after its own that a query sees; -1 for all.
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
    """Computes attention of concatenated sequences of different lengths.

    Args:
        q: (queries of all sequences, heads, channels).
        k: (keys of all sequences, heads or a divisor, channels).
        v: as k.
        cu_seqlens_q: (sequences + 1), the start of each sequence and the end of the last.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: ignored.
        max_seqlen_k: ignored.
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


# Axes of (batch, heads, positions, channels) in each supported layout.
_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


class _C:
    """torch_npu._C; trl calls one of its functions."""

    _storage_Use_Count = staticmethod(torch._C._storage_Use_Count)


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    sparse_mode: int = 0,
    pre_tockens: int = 2**31 - 1,
    next_tockens: int = 2**31 - 1,
    inner_precise: int = 0,
    sync: bool = False,
    **others: Any,
) -> tuple[torch.Tensor]:
    """Attention with torch_npu's signature; a mask's ones are masked-out positions.

    Args:
        query: in the layout's order of batch, heads N, positions S and channels D.
        key: the same, with the same number of heads or a divisor.
        value: as key.
        head_num: heads of query.
        input_layout: ``BNSD`` or ``BSND``.
        atten_mask: boolean, or a number that is nonzero for masked-out positions.
        scale: scale of the products.
        keep_prob: probability that dropout keeps an element.
        sparse_mode: 0 for the mask as given; 2 and 3 for causal attention aligned at the first or
            the last positions, with a mask of a fixed size, which is not read.
        pre_tockens: number of positions before its own that a query may see.
        next_tockens: the same for positions after it.
        inner_precise: ignored; sums are float32.
        sync: ignored; the result is in stream order.
        others: unsupported arguments of torch_npu; must be None.

    Returns:
        Only the output, in the layout of query. torch_npu's other results are for its backward
        pass.

    Raises:
        InputError: an unsupported layout, mode or argument (code ``ascend-call``).
    """
    if input_layout not in _LAYOUTS:
        raise _refused("npu_fusion_attention", f'input_layout="{input_layout}"')
    if sparse_mode not in (0, 2, 3):
        raise _refused("npu_fusion_attention", f"sparse_mode={sparse_mode}")
    for name, argument in others.items():
        if argument is not None:
            raise _refused("npu_fusion_attention", name)
    axes = _LAYOUTS[input_layout]
    q, k, v = (one.permute(axes) for one in (query, key, value))
    positions = max(q.shape[2], k.shape[2])
    if sparse_mode == 0 and min(pre_tockens, next_tockens) < positions:
        raise _refused("npu_fusion_attention", "pre_tockens or next_tockens that limit attention")
    mask = None if atten_mask is None else ~atten_mask.bool()
    if sparse_mode:
        offset = k.shape[2] - q.shape[2] if sparse_mode == 3 else 0
        mask = causal_mask(q.shape[2], k.shape[2], offset=offset, device=q.device)
    return (attend(q, k, v, mask=mask, scale=scale, dropout_p=1.0 - keep_prob).permute(axes),)


def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplies one half of a tensor by GELU of the other; returns the product and the GELU.

    Args:
        self: any shape, of an even size along dim.
        dim: the axis to halve.
        approximate: 1 for the tanh approximation, 0 for exact GELU.
        activate_left: whether to apply GELU to the first half.
    """
    left, right = self.chunk(2, dim)
    gate, other = (left, right) if activate_left else (right, left)
    activated = torch.nn.functional.gelu(gate, approximate="tanh" if approximate else "none")
    return other * activated, activated


def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes RMS norm over the axes of gamma; returns it and the inverse RMS factors."""
    axes = tuple(range(-gamma.dim(), 0))
    factors = self.float().square().mean(axes, keepdim=True).add(epsilon).rsqrt()
    return torch.nn.functional.rms_norm(self, gamma.shape, gamma, epsilon), factors


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # attributes that Python itself reads
        raise AttributeError(name)
    raise _refused(name)


class AscendCallError(InputError, AttributeError):
    """An unsupported call of torch_npu."""


def _refused(call: str, what: str = "") -> AscendCallError:
    shown = f" with {what}" if what else ""
    return AscendCallError(
        f"torch_npu.{call}: this npu is not Huawei's and has no such call{shown}. Use the "
        "library's option for other devices; docs/guides/hugging-face.md lists the supported "
        "calls.",
        code="ascend-call",
    )

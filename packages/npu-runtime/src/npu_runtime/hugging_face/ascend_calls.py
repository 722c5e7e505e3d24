"""The calls of Huawei's torch_npu that Hugging Face's libraries make, with torch's own functions.

This module stands for torch_npu inside modules of those libraries, and nowhere else.
"""

from typing import Any, NoReturn

import torch

from npu_runtime.errors import InputError
from npu_runtime.hugging_face.attention import attend, causal_mask

__all__ = ["npu_fusion_attention", "npu_geglu", "npu_rms_norm"]

# Where the heads are in each layout that is taken: (batch, heads, positions, channels) by axis.
_LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


class _C:
    """torch_npu._C, of which trl calls one function."""

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
    """Attention as torch_npu has it; a mask's ones are positions that are left out.

    Args:
        query: in the layout's order of batch, heads N, positions S and channels D.
        key: the same, with as many heads or a divisor of them.
        value: as key.
        head_num: heads of query.
        input_layout: ``BNSD`` or ``BSND``.
        atten_mask: boolean, or a number that is not 0 where a position is left out.
        scale: factor of the products.
        keep_prob: share that dropout keeps.
        sparse_mode: 0 for the mask as given; 2 and 3 for causal attention aligned at the first or
            the last positions, where the mask is one of a fixed size and is not read.
        pre_tockens: positions before a query's own that it may see, when it is a limit at all.
        next_tockens: the same for those behind it.
        inner_precise: changes nothing; float32 is the precision of sums.
        sync: changes nothing; the result is in stream order.
        others: what only torch_npu has; must be None.

    Returns:
        The output alone, in the layout of query. torch_npu's further results are for its own
        backward pass.

    Raises:
        InputError: a layout, mode or argument that is not taken (code ``ascend-call``).
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
    """One half of a tensor times GELU of the other; returns the product and that GELU.

    Args:
        self: any shape, of an even size along dim.
        dim: the axis that is halved.
        approximate: 1 for the form with tanh, 0 for the exact one.
        activate_left: whether GELU is of the first half.
    """
    left, right = self.chunk(2, dim)
    gate, other = (left, right) if activate_left else (right, left)
    activated = torch.nn.functional.gelu(gate, approximate="tanh" if approximate else "none")
    return other * activated, activated


def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm over the axes of gamma; returns it and the factors that it multiplied by."""
    axes = tuple(range(-gamma.dim(), 0))
    factors = self.float().square().mean(axes, keepdim=True).add(epsilon).rsqrt()
    return torch.nn.functional.rms_norm(self, gamma.shape, gamma, epsilon), factors


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # what Python itself asks modules for
        raise AttributeError(name)
    raise _refused(name)


class AscendCallError(InputError, AttributeError):
    """A call of torch_npu that has no counterpart here."""


def _refused(call: str, what: str = "") -> AscendCallError:
    shown = f" with {what}" if what else ""
    return AscendCallError(
        f"torch_npu.{call}: this npu is not Huawei's and has no such call{shown}. Use the "
        "library's option for other devices; docs/guides/hugging-face.md lists what is served.",
        code="ascend-call",
    )

"""What an attention mask lets a token see, found by computing the mask in cases that tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step
from npu_compiler.kernel_programs.refusal import refused

__all__ = ["MaskFacts", "read_mask"]

# Below this a bias hides what it is added to.
_HIDDEN = -1e30


@dataclass(frozen=True)
class MaskFacts:
    """What a token sees: itself and what lies before it in its sequence, and no padding.

    Attributes:
        window: how many tokens it sees, itself included; None for all.
        slopes: (heads,) float32: slope * (slot - own slot) is added to the scores; None.
    """

    window: int | None
    slopes: torch.Tensor | None


def read_mask(
    graph_module: fx.GraphModule, step: Step, node: fx.Node, mask: fx.Node, *, positions: int
) -> MaskFacts:
    """Returns what a mask means.

    Args:
        graph_module: the captured step.
        step: its placeholders.
        node: the call that uses the mask, for the error.
        mask: (batch, 1 or heads, tokens, past + tokens), boolean or added to the scores.
        positions: how long a sequence may become.

    Raises:
        LoweringError: [not-row-wise] if it is neither causal nor causal in a window.
    """

    def computed(case: Case) -> torch.Tensor:
        value: torch.Tensor = Evaluator(graph_module, step, case).value(mask)
        shape = (case.batch, -1, case.tokens, case.past + case.tokens)
        return value.expand(*shape[:1], value.shape[1], *shape[2:])

    longest = max(positions, 2)
    seen = _seen(computed(Case(batch=1, tokens=1, past=longest - 1, kept=1)))
    visible = int(seen.sum(-1).max())
    window = None if visible == longest else visible
    padded = torch.ones(2, 7, dtype=torch.int64)
    padded[0, :2] = 0
    cases = [
        Case(mask=padded),
        Case(batch=2, tokens=5, past=0, kept=1),
        Case(batch=1, tokens=1, past=0, kept=1),
        Case(batch=1, tokens=min(9, longest), past=max(0, min(visible, longest - 9)), kept=1),
    ]
    slopes = None
    for case in cases:
        value = computed(case)
        expected = _causal(case, window)
        real = case.full_mask[:, -case.tokens :].bool()
        if not torch.equal(_seen(value)[real], expected.expand_as(_seen(value))[real]):
            raise refused(node, "has a mask that is neither causal nor causal in a window")
        if value.dtype is torch.bool or case.past + case.tokens == 1:
            continue
        found = _slopes(value, case, expected, real)
        if found is None or (slopes is not None and not torch.allclose(found, slopes, atol=1e-6)):
            raise refused(node, "has a mask with a bias that is not linear in the distance")
        slopes = found
    if slopes is not None and not bool(slopes.any()):
        slopes = None
    return MaskFacts(window, slopes)


def _seen(value: torch.Tensor) -> torch.Tensor:
    """Returns what is seen by any head: (batch, tokens, all) bool."""
    visible = value if value.dtype is torch.bool else value > _HIDDEN
    return visible.any(1)


def _causal(case: Case, window: int | None) -> torch.Tensor:
    """Returns (batch, tokens, all) bool: what a token should see."""
    real = case.full_mask.bool()
    own = torch.arange(case.past, case.past + case.tokens)[:, None]
    other = torch.arange(case.past + case.tokens)[None]
    causal = other <= own
    if window is not None:
        causal &= own - other < window
    return causal[None] & real[:, None]


def _slopes(
    value: torch.Tensor, case: Case, seen: torch.Tensor, real: torch.Tensor
) -> torch.Tensor | None:
    """Returns (heads,) if the bias is slope * distance, up to a number per row; else None."""
    heads = value.shape[1]
    own = torch.arange(case.past, case.past + case.tokens)[:, None]
    other = torch.arange(case.past + case.tokens)[None]
    distance = (other - own).float()
    at_self = torch.gather(value, 3, own.expand(case.batch, heads, -1, 1))
    bias = (value - at_self).masked_fill(~seen[:, None], 0)
    bias = bias * real[:, None, :, None]
    before = (seen & (distance == -1))[:, None] & real[:, None, :, None]
    slopes = torch.stack([-bias[:, head][before[:, 0]].float().mean() for head in range(heads)])
    expected = slopes[None, :, None, None] * distance
    expected = expected.masked_fill(~seen[:, None], 0) * real[:, None, :, None]
    return slopes if torch.allclose(bias.float(), expected, atol=1e-4, rtol=1e-4) else None

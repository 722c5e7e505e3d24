"""CrossCache: what the caches of a generation with an encoder have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from npu_llm.errors import ContextError
from npu_llm.kv_cache.cache import StepCache

__all__ = ["CrossCache", "StepResult", "equal_neighbours"]


@dataclass(frozen=True)
class StepResult:
    """What a step returns.

    Attributes:
        logits: (batch, tokens, vocabulary) float32.
        attentions: of each layer (batch, heads, tokens, source), if the program returns them.
    """

    logits: torch.Tensor
    attentions: tuple[torch.Tensor, ...]


class CrossCache(StepCache):
    """Keys and values of a decoder's own attention, and of its attention to the encoder's result.

    The latter are computed once, by `read`, before the first token.
    """

    # How many tokens the decoder takes; None if it sets no limit.
    _positions: int | None = None

    @property
    @abstractmethod
    def has_source(self) -> bool:
        """Whether the encoder's result was read."""

    @abstractmethod
    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes what cross-attention reads.

        Args:
            hidden: the encoder's result (batch, source, width) float32, on cpu.
            mask: which of it counts (batch, source); None for all.
        """

    @abstractmethod
    def next(
        self,
        ids: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> StepResult:
        """Reads tokens.

        Args:
            ids: (batch, tokens) int64, on cpu.
            mask: which tokens count (batch, past + tokens); None for all.
            places: the tokens' positions (batch, tokens); counted from the mask by default.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after a step that was interrupted.
            ContextError: [context-overflow] for more tokens than the decoder takes.
        """

    def check_positions(self, tokens: int) -> None:
        """Checks that the decoder takes this many tokens.

        Raises:
            ContextError: [context-overflow] if it does not.
        """
        if self._positions is not None and tokens > self._positions:
            raise ContextError(
                f"decoder_input_ids: the decoder holds {self._positions:,} tokens; got {tokens:,}. "
                "Ask for fewer new tokens.",
                code="context-overflow",
            )


def equal_neighbours(
    hidden: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, list[int]]:
    """Returns the number of each row's source, and the first row of each source."""
    groups, firsts = [], []
    for row in range(hidden.shape[0]):
        is_same = row > 0 and torch.equal(hidden[row], hidden[row - 1])
        if is_same and mask is not None:
            is_same = torch.equal(mask[row], mask[row - 1])
        if not is_same:
            firsts.append(row)
        groups.append(len(firsts) - 1)
    return torch.tensor(groups), firsts

"""SparseAttention: which blocks of keys a long sequence's next token attends to."""

from __future__ import annotations

from dataclasses import dataclass

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.instructions import Attend
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.rows import BLOCK_SLOTS

__all__ = ["SparseAttention", "why_not_sparse"]

_FEWEST_BLOCKS = 4  # the first, the two newest, and one to choose
_MOST_BLOCKS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class SparseAttention:
    """An approximation of attention for models that were made for dense attention.

    In a step of one token, each head of keys attends to top_k / 16 blocks of 16 positions: the
    first, the two newest, and those whose keys can have the highest score. What a block's keys can
    reach follows from the least and the largest value of each channel, as in Quest (arXiv
    2406.10774); heads that share keys choose together. Steps of several tokens, as prompts are,
    stay dense.

    Attributes:
        top_k: how many positions to attend to, a multiple of 16 and at least 64.
        after: sequences of at most so many positions stay dense, at least top_k; None for top_k.

    Raises:
        OperatorInputError: [sparse-attention] for other numbers.
    """

    top_k: int
    after: int | None = None

    def __post_init__(self) -> None:
        fewest, most = _FEWEST_BLOCKS * BLOCK_SLOTS, _MOST_BLOCKS * BLOCK_SLOTS
        if type(self.top_k) is not int or self.top_k % BLOCK_SLOTS or not (
            fewest <= self.top_k < most
        ):  # fmt: skip
            raise OperatorInputError(
                f"SparseAttention: top_k must be a multiple of {BLOCK_SLOTS}, as positions are "
                f"chosen in blocks of so many, and at least {fewest}; got {self.top_k!r}. Pass "
                "2048, for instance.",
                code="sparse-attention",
            )
        if self.after is not None and (type(self.after) is not int or self.after < self.top_k):
            raise OperatorInputError(
                f"SparseAttention: after must be a number of positions, at least top_k, "
                f"{self.top_k}, below which nothing is left out; got {self.after!r}. Omit it for "
                "top_k.",
                code="sparse-attention",
            )

    @property
    def blocks(self) -> int:
        """How many blocks of keys a token attends to."""
        return self.top_k // BLOCK_SLOTS

    @property
    def dense_up_to(self) -> int:
        """Sequences of at most so many positions stay dense."""
        return self.top_k if self.after is None else self.after

    def __str__(self) -> str:
        """Returns the numbers as reports show them, as in "2,048 after 4,096"."""
        beyond = "" if self.dense_up_to == self.top_k else f" after {self.dense_up_to:,}"
        return f"{self.top_k:,}{beyond}"


def why_not_sparse(program: KernelProgram) -> str | None:
    """Returns what sparse attention would break in a program, as "has a window"; None if nothing.

    Args:
        program: any; one that attends to nothing has nothing to choose from.
    """
    attends = [one for one in program.instructions if isinstance(one, Attend)]
    if not attends:
        return "does not attend to a cache"
    kinds = {
        "window": "a window",
        "soft_cap": "a soft cap",
        "sinks": "attention sinks",
        "slopes": "slopes by distance (ALiBi)",
    }
    for one in attends:
        for name, said in kinds.items():
            if getattr(one, name) is not None:
                return f"has {said} in layer {one.layer}"
    return None

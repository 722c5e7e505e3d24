"""What is reported about a step whose logits differ from torch's."""

from __future__ import annotations

from dataclasses import dataclass

from npu_compiler.verification.comparison import Difference

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """A step whose logits differ from torch's.

    Attributes:
        step: which step, in words.
        difference: how they differ.
    """

    step: str
    difference: Difference

    def __str__(self) -> str:
        return f"{self.step}: {self.difference}"

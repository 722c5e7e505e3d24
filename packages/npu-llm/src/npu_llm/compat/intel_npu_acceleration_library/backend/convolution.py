"""A convolution in float16, whose weights are inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory

__all__ = ["Convolution"]


class Convolution(NNFactory):
    """A convolution of one input with its weights, and a bias where there is one."""

    def __init__(
        self,
        input_shape: Sequence[int],
        weights_shape: Sequence[int],
        bias: Any = False,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph.

        Args:
            input_shape: (batch, channels, ...).
            weights_shape: (outputs, inputs / groups, ...), or with the groups as a first axis.
            bias: whether a bias of one number per output is a third input.
            strides: one for all dimensions, or one each.
            padding: likewise.
            dilation: likewise.
            groups: parts of the channels that do not mix.
            profile: as for NNFactory.
            device: as for NNFactory.
        """
        super().__init__(profile, device)
        rows, weights = self.parameter(input_shape), self.parameter(weights_shape)
        is_grouped = len(weights_shape) > len(input_shape)
        outputs = weights_shape[0] * (weights_shape[1] if is_grouped else 1)
        offset = self.parameter((outputs,)) if bias else None
        self.convolution(rows, weights, offset, strides, padding, dilation, groups)

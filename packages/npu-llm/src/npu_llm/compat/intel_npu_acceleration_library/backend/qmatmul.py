"""Products of rows with a weight of integers, which divide by the square root of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.conventions import warn_once

__all__ = ["QLinear", "QMatMul"]

Array = np.ndarray[Any, Any]


class QMatMul(NNFactory):
    """X @ (W * scale / sqrt(inC)).T, in float16."""

    def __init__(
        self,
        inC: int,
        outC: int,
        batch: int,
        profile: bool = False,
        device: str = "NPU",
        dtype: Any = np.int8,
    ) -> None:
        """Builds the graph.

        Args:
            inC: columns of X and W.
            outC: rows of W.
            batch: rows of X.
            profile: as for NNFactory.
            device: as for NNFactory.
            dtype: of W: int8, or uint8 for two numbers of 4 bits to a byte.
        """
        super().__init__(profile, device)
        self.inC, self.outC, self.batch = inC, outC, batch
        self._linear(self.parameter((batch, inC)), (outC, inC), False, np.float16, dtype)

    def run(self, X: Array, W: Array, scale: Array) -> Any:
        """Multiplies.

        Args:
            X: (batch, inC).
            W: (outC, inC), or (outC, inC / 2) bytes.
            scale: (outC, 1), multiplied by sqrt(inC).
        """
        warn_once("scale-root")
        return super().run(X, W, scale)


class QLinear(QMatMul):
    """QMatMul whose weights are kept under a name."""

    def run(self, X: Array, W: Array, scale: Array, op_id: str | None = None) -> Any:
        """Multiplies, as QMatMul; op_id is a name for the weights."""
        warn_once("scale-root")
        return NNFactory.run(self, X, W, scale, op_id=op_id)

"""Products of rows with a weight, in float16."""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory

__all__ = ["Linear", "MatMul"]

Array = np.ndarray[Any, Any]


class MatMul(NNFactory):
    """X @ W.T, in float16."""

    def __init__(
        self, inC: int, outC: int, batch: int, profile: bool = False, device: str = "NPU"
    ) -> None:
        """Builds the graph.

        Args:
            inC: columns of X and W.
            outC: rows of W.
            batch: rows of X.
            profile: as for NNFactory.
            device: as for NNFactory.
        """
        super().__init__(profile, device)
        self.inC, self.outC, self.batch = inC, outC, batch
        self.linear(self.parameter((batch, inC)), outC, inC)


class Linear(MatMul):
    """MatMul whose weights are kept under a name."""

    def run(self, X: Array, W: Array, op_id: str | None = None) -> Any:
        """Multiplies.

        Args:
            X: (batch, inC).
            W: (outC, inC).
            op_id: a name for the weights.
        """
        return super().run(X, W, op_id=op_id)

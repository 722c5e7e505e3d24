"""Reference: torch's results for a short input and some tokens, stored next to the programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from npu_compiler.verification.comparison import Difference, compare
from npu_llm.verification.reference import EagerWeights, Integers, Rounding

if TYPE_CHECKING:
    from npu_llm.checkpoint.streamed import StreamedWeights

__all__ = ["Reference", "compute", "differ", "read_reference"]

# Tolerance of all logits together, as a multiple of the rounding error, or as a share.
_NORMS = 3.0
_SHARES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Reference:
    """Inputs, and the logits that follow.

    Attributes:
        inputs: by name: two rows, the second padded if the model takes padding.
        ids: further tokens (2, tokens) int64.
        logits: (2, all tokens with logits, vocabulary) float32, by torch in float32 with the
            programs' weights.
        rounded: the logits with the rounding of the programs' arithmetic.
        precision: dtype to which `rounded` is rounded.
    """

    inputs: dict[str, torch.Tensor]
    ids: torch.Tensor
    logits: torch.Tensor
    rounded: torch.Tensor
    precision: str

    def write(self, path: Path) -> None:
        """Writes the reference, for `read_reference`."""
        tensors = {f"input.{name}": tensor for name, tensor in self.inputs.items()}
        tensors |= {"ids": self.ids, "logits": self.logits, "rounded": self.rounded}
        save_file(tensors, path, {"about": json.dumps({"precision": self.precision})})


def compute(
    run: Callable[[], torch.Tensor],
    inputs: dict[str, torch.Tensor],
    ids: torch.Tensor,
    *,
    weights: StreamedWeights,
    compressed: Integers | None,
    rounding: Rounding,
) -> Reference:
    """Runs a model in torch, with its weights, exactly and with its programs' rounding.

    Args:
        run: runs the model on the inputs and ids; returns the logits.
        inputs: see Reference.
        ids: see Reference.
        weights: the values of the model's parameters.
        compressed: parameters that the programs store as integers.
        rounding: rounding of the programs' arithmetic.
    """

    def logits(how: Rounding | None) -> torch.Tensor:
        with torch.no_grad(), EagerWeights(weights, compressed, rounding=how):
            return run().float().contiguous()

    precision = str(rounding.dtype).removeprefix("torch.")
    return Reference(inputs, ids, logits(None), logits(rounding), precision)


def read_reference(path: Path) -> Reference:
    """Reads a reference."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inputs = {
        name.removeprefix("input."): tensor
        for name, tensor in tensors.items()
        if name.startswith("input.")
    }
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("input.")}
    return Reference(inputs=inputs, **rest, **about)


def differ(
    logits: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor, precision: str
) -> Difference | str | None:
    """Returns how logits differ from torch's beyond rounding; None if they do not.

    Args:
        logits: (..., vocabulary) float32, as the following.
        expected: torch's logits.
        rounded: torch's logits with the rounding of the program's arithmetic.
        precision: dtype of that rounding.
    """
    found = compare([logits], [expected], precision=precision, noisy=lambda: [[rounded]])
    distance, size = float((logits - expected).norm()), float(expected.norm())
    allowed = max(_NORMS * float((rounded - expected).norm()), _SHARES[precision] * size)
    if found is None and not distance <= allowed and size > 0:
        return f"all logits together are off by {distance / size:.3g} of their size"
    return found

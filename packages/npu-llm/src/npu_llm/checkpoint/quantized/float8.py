"""float8 weights with scales: per tensor, per output, or per block.

The names of scales are those of transformers' "fp8" (DeepSeek's blocks), compressed-tensors,
ModelOpt, FBGEMM and vLLM. All multiply the stored values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import EncodedWeight, Read, elements_of, incomplete
from npu_llm.errors import ModelError

__all__ = ["find", "scale_layout"]

_KINDS = ("F8_E4M3", "F8_E5M2")
_BLOCK = (128, 128)
_WHY = "kernels do not support float8"


def find(config: Mapping[str, Any], headers: Mapping[str, TensorSpec]) -> Iterator[EncodedWeight]:
    """Yields the float8 weights of a checkpoint.

    Args:
        config: the quantization config; empty for none.
        headers: headers of the tensors.

    Raises:
        ModelError: [weights-scale] for a weight without a scale, [quantization-parts] for a scale
            of another shape.
    """
    for name, tensor in headers.items():
        if tensor.dtype in _KINDS and not _is_scale(name):
            yield _weight(name, tensor, config, headers)


def _is_scale(name: str) -> bool:
    return "scale" in name.rpartition(".")[2]


def _weight(
    name: str, tensor: TensorSpec, config: Mapping[str, Any], headers: Mapping[str, TensorSpec]
) -> EncodedWeight:
    base, _, last = name.rpartition(".")
    candidates = [f"{name}_scale_inv", f"{name}_scale", f"{base}.scale_{last}", f"{name}.scale"]
    if last == "weight":
        candidates.append(f"{base}.scale")
    scale = next((one for one in candidates if one in headers), None)
    if scale is None:
        raise ModelError(
            f"`{name}` must have scales for float8 weights, such as {name}_scale, got none. Get "
            "the whole checkpoint; if the values need no scales, convert them to bfloat16 and "
            "save them again.",
            code="weights-scale",
        )
    size = config.get("weight_block_size") or _BLOCK
    spread, form = scale_layout(name, tensor.shape, headers[scale].shape, size)

    def decode(read: Read) -> torch.Tensor:
        # Some scales are powers of two, stored as their exponents.
        return read("weight").float() * spread(read("scale").float())

    return EncodedWeight(
        name=name,
        shape=tensor.shape,
        parts={"weight": name, "scale": scale},
        decode=decode,
        form=f"float8 {form}",
        why_floats=_WHY,
    )


def scale_layout(
    name: str, shape: tuple[int, ...], scale: tuple[int, ...], block: Any
) -> tuple[Callable[[torch.Tensor], torch.Tensor], str]:
    """Returns a function that expands scales over a weight's values, and the layout as text.

    Args:
        name: name of the weight, for the message.
        shape: shape of its values, (..., outputs, inputs).
        scale: shape of its scales.
        block: outputs and inputs of a block, for scales per block.

    Raises:
        ModelError: [quantization-parts] for scales of another shape.
    """
    if elements_of(scale) == 1:
        return lambda scales: scales.reshape(()), "with a scale per tensor"
    if len(shape) >= 2:
        *front, outputs, inputs = shape
        by_output = (*front, outputs)
        if scale in (by_output, (*by_output, 1)):
            return lambda scales: scales.reshape(*by_output, 1), "with a scale per output"
        if scale in (tuple(front), (*front, 1), (*front, 1, 1)) and front:
            ones = (*front, 1, 1)
            return lambda scales: scales.reshape(ones), "with a scale per expert"
        high, wide = (int(size) for size in block)
        if scale == (*front, -(-outputs // high), -(-inputs // wide)):

            def spread(scales: torch.Tensor) -> torch.Tensor:
                rows = scales.repeat_interleave(high, -2)[..., :outputs, :]
                return rows.repeat_interleave(wide, -1)[..., :inputs]

            return spread, f"in blocks of {high} x {wide}"
    raise incomplete(name, f"its scale has the shape {scale}, the weight {shape}")

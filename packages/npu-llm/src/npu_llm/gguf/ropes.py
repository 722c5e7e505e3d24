"""Rotary frequencies, computed like ggml from a file's metadata and factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from npu_llm.gguf.keys import Keys

__all__ = ["Rope", "read_rope"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions of a model's layers.

    Attributes:
        base: base of the frequencies.
        frequencies: (rotated / 2,) float32, factors of the positions.
        scale: factor of cosines and sines.
        scaling: method of frequency scaling: "none", "linear", "yarn" or "longrope".
        factor: compression of positions.
        original: context before the extension.
        factors: (rotated / 2,) float32, divisors of the frequencies; None without.
        short_factors: divisors for texts within the original context, if they differ.
        context: the model's context in tokens.
        betas: rotation counts of the frequencies between which YaRN interpolates partially.
    """

    base: float
    frequencies: torch.Tensor
    scale: float
    scaling: str
    factor: float
    original: int
    factors: np.ndarray | None = None
    short_factors: np.ndarray | None = None
    context: int = 0
    betas: tuple[float, float] = (32.0, 1.0)

    def parameters(self, *, partial: float | None = None) -> dict[str, object]:
        """Returns transformers' rope_parameters, as far as they can express this.

        Args:
            partial: rotated share of a head; None for all of it.
        """
        found: dict[str, object] = {"rope_type": "default", "rope_theta": self.base}
        if partial is not None:
            found["partial_rotary_factor"] = partial
        if self.scaling == "linear" and self.factor != 1.0 and self.factors is None:
            found |= {"rope_type": "linear", "factor": self.factor}
        if self.scaling == "yarn" and self.factor != 1.0 and self.factors is None:
            found |= {
                "rope_type": "yarn",
                "factor": self.factor,
                "attention_factor": self.scale,
                "original_max_position_embeddings": self.original,
                "beta_fast": self.betas[0],
                "beta_slow": self.betas[1],
            }
        if self.factors is not None and self.scaling != "yarn":
            # The only kind with a separate divisor for each frequency.
            short, original = self.factors, self.context
            if self.short_factors is not None:
                short, original = self.short_factors, self.original
            found |= {
                "rope_type": "longrope",
                "short_factor": (short * self.factor).tolist(),
                "long_factor": (self.factors * self.factor).tolist(),
                "attention_factor": self.scale,
                "factor": self.context / original,
                "original_max_position_embeddings": original,
            }
        return found


def read_rope(
    keys: Keys,
    *,
    rotated: int | None = None,
    base: float | None = None,
    is_scaled: bool = True,
    has_yarn_keys: bool = False,
    factors: str | None = "rope_freqs.weight",
) -> Rope:
    """Reads the rotary positions of a file's model.

    YaRN: Peng et al., 2023, https://arxiv.org/abs/2309.00071

    Args:
        keys: the file's metadata.
        rotated: number of rotated rows per head; by default the metadata's.
        base: the base; by default the metadata's.
        is_scaled: whether the metadata's scaling applies to these layers.
        has_yarn_keys: whether ggml reads YaRN's own parameters for the architecture.
        factors: tensor of factors; None if these layers have none.

    Raises:
        ModelError: [gguf-metadata] for an unknown kind of scaling.
    """
    size = keys.rotated if rotated is None else rotated
    base = keys.real("rope.freq_base", 10_000.0) if base is None else base
    context = keys.number("context_length")
    original = keys.number("rope.scaling.original_context_length", context)
    scaling = keys.get("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise keys.refuse(f"must have a known rope.scaling.type, got {scaling!r}")
    factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 0.0)) or 1.0
    scale = keys.real("rope.scaling.attn_factor", 1.0)
    if not is_scaled or scaling == "none":
        factor = 1.0
    if not is_scaled:
        scale, scaling = 1.0, "none"
    frequencies = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    divided, short = _factors(keys, context > original, factors)
    if divided is not None:
        if divided.shape != frequencies.shape:
            raise keys.refuse(f"must have {len(frequencies)} rotary factors, got {divided.shape}")
        frequencies = frequencies / divided
    interpolated = frequencies / factor
    fast, slow = 32.0, 1.0
    if scaling == "yarn":
        if original == 0 or base <= 1:
            raise keys.refuse(
                "must have a positive original context and a rope.freq_base above 1 for YaRN, got "
                f"{original} and {base}"
            )
        if has_yarn_keys:
            fast = keys.real("rope.scaling.yarn_beta_fast", fast)
            slow = keys.real("rope.scaling.yarn_beta_slow", slow)
        multiplier = keys.real("rope.scaling.yarn_log_multiplier", 0.0) if has_yarn_keys else 0.0
        # The share that is not interpolated, per frequency.
        kept = _ramp(size, base, original, fast, slow)
        interpolated = interpolated * (1 - kept) + frequencies * kept
        scale *= _magnitude(factor, 1.0) / (_magnitude(factor, multiplier) if multiplier else 1.0)
    return Rope(
        base,
        torch.from_numpy(interpolated.astype(np.float32)),
        scale,
        scaling,
        factor,
        original,
        divided,
        short,
        context,
        (fast, slow),
    )


def _factors(
    keys: Keys, is_long: bool, name: str | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns the factors in use, and other factors for short texts."""
    tensors = keys.file.tensors
    if name is not None and name in tensors:
        return tensors[name].values(), None
    long, short = (tensors.get(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    if long is None or short is None:
        return None, None
    # As in llama.cpp with the model's own context.
    return (long.values(), short.values()) if is_long else (short.values(), None)


def _ramp(size: int, base: float, original: int, fast: float, slow: float) -> np.ndarray:
    def turn(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(turn(fast))), min(size - 1, math.ceil(turn(slow)))
    at = np.arange(size // 2)
    kept: np.ndarray = 1.0 - np.clip((at - low) / max(0.001, high - low), 0.0, 1.0)
    return kept


def _magnitude(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * multiplier * math.log(factor) + 1.0

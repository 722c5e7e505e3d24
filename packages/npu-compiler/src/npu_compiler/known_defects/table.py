"""The table of known defects, and their workarounds for a model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import openvino

from npu_compiler.known_defects import (
    absolute_of_computed_constant,
    attention_in_place,
    attention_of_one_query,
    attention_of_two_uses,
    attention_of_varying_sizes,
    comparison_with_nan,
    computed_constant_in_place,
    constant_beyond_float16,
    constant_of_higher_rank,
    reduction_of_unsqueezed,
    stride_of_one_pixel,
    tile_of_one_channel,
    weight_and_its_transpose,
)
from npu_compiler.known_defects.entry import KnownDefect, version_number

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["KNOWN_DEFECTS", "avoid_defects"]

_logger = logging.getLogger(__name__)

KNOWN_DEFECTS: tuple[KnownDefect, ...] = (
    attention_in_place.DEFECT,
    attention_of_varying_sizes.DEFECT,
    attention_of_two_uses.DEFECT,
    attention_of_one_query.DEFECT,
    comparison_with_nan.DEFECT,
    computed_constant_in_place.DEFECT,
    constant_beyond_float16.DEFECT,
    constant_of_higher_rank.DEFECT,
    absolute_of_computed_constant.DEFECT,
    reduction_of_unsqueezed.DEFECT,
    stride_of_one_pixel.DEFECT,
    tile_of_one_channel.DEFECT,
    weight_and_its_transpose.DEFECT,
)

# The simulated device uses the CPU plugin.
_KINDS = {"SIM": "CPU"}


def avoid_defects(
    model: ov.Model, *, device: str, hint: str = "f32", release: str | None = None
) -> dict[str, str]:
    """Rewrites parts of a model that a plugin would compute wrongly; returns required options.

    Args:
        model: changed in place.
        device: OpenVINO's name of the device that will run it, or SIM.
        hint: the value of INFERENCE_PRECISION_HINT that it is compiled with.
        release: OpenVINO's release; by default the installed one.
    """
    # SIM2 and CPU.0 have the defects of SIM and CPU.
    letters = device.partition(".")[0].rstrip("0123456789")
    kind = _KINDS.get(letters, letters)
    number = version_number(release or openvino.__version__)
    options: dict[str, str] = {}
    for defect in KNOWN_DEFECTS:
        if kind not in defect.devices or number < defect.first:
            continue
        if defect.hints and hint not in defect.hints:
            continue
        if defect.avoid is not None:
            if count := defect.avoid(model):
                _logger.info("%s: %d places rewritten: %s", defect.name, count, defect.summary)
        elif defect.occurs is not None and defect.occurs(model):
            _logger.info("%s: compiling with %s", defect.name, dict(defect.options))
            options |= defect.options
    return options

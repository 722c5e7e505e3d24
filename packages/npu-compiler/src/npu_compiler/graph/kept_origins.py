"""Origins of calls, stored in an OpenVINO model and read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping

import openvino as ov

__all__ = ["keep_origins", "kept_origins"]

# The key in a model's runtime information.
_ORIGINS = ["npu_compiler", "origins"]


def keep_origins(model: ov.Model, origins: Mapping[str, tuple[str, str]]) -> None:
    """Stores the origins of a graph's calls in its model."""
    model.set_rt_info(json.dumps(origins), _ORIGINS)


def kept_origins(model: ov.Model) -> dict[str, tuple[str, str]]:
    """Returns the origins that keep_origins stored in a model; empty without any."""
    if not model.has_rt_info(_ORIGINS):
        return {}
    kept = json.loads(str(model.get_rt_info(_ORIGINS).value))
    return {name: (module, line) for name, (module, line) in kept.items()}

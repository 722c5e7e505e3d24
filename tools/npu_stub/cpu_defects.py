"""Pytest plugin: works around defects of the CPU plugin, by which the stub computes.

Models are rewritten as for a CPU. Options that avoid further defects are left out, because the NPU
does not have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from npu_compiler.known_defects.table import avoid_defects
from npu_compiler.programs import load

if TYPE_CHECKING:
    import openvino as ov

_needed_options = load.needed_options


def pytest_configure(config: pytest.Config) -> None:
    """Changes the requirements of programs before they are compiled."""
    for module in ("load", "cache"):
        name = f"npu_compiler.programs.{module}.needed_options"
        pytest.MonkeyPatch().setattr(name, _also_for_the_cpu)


def _also_for_the_cpu(
    model: ov.Model, device_index: int | None, options: Mapping[str, str]
) -> dict[str, str]:
    needed = _needed_options(model, device_index, options)
    avoid_defects(model, device="CPU", hint=options.get("INFERENCE_PRECISION_HINT", "f32"))
    return needed

"""A plugin of pytest: the stub computes by the CPU plugin, whose known defects are no NPU's.

Models are rewritten around them as for a CPU. Options that avoid the others are not the NPU's, and
are left out.
"""

from __future__ import annotations

import dataclasses

import pytest

from npu_compiler.known_defects import table


def pytest_configure(config: pytest.Config) -> None:
    """Adds the NPU to the devices of what is avoided by rewriting."""
    table.KNOWN_DEFECTS = tuple(
        defect
        if defect.avoid is None or "NPU" in defect.devices
        else dataclasses.replace(defect, devices=(*defect.devices, "NPU"))
        for defect in table.KNOWN_DEFECTS
    )

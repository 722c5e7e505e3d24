"""The checks of a driver, by what they are about."""

from npu_runtime.driver_conformance.checks import (  # noqa: F401  # importing one registers its checks
    events,
    memory,
    opening,
    programs,
    requests,
    streams,
)
from npu_runtime.driver_conformance.registry import registered

__all__ = ["ALL_CHECKS"]

# In the order of the table's fields, and then by name.
ALL_CHECKS = registered()

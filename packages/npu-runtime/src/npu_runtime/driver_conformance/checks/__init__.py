"""Driver conformance checks, by topic."""

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

# Sorted by the order of the table's fields, then by name.
ALL_CHECKS = registered()

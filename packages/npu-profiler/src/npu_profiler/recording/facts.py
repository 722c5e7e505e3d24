"""What software a trace was made with."""

import contextlib
import importlib.metadata
import platform

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Versions by name; of packages only those that are installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "npu-profiler", "npu-runtime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found

"""Installs what other wheels offer to watch a running process, where the user asked for it.

Entry points of the group ``npu_runtime.observers`` name functions without arguments. npu-profiler's
waits for ``npu-profiler attach``; npu-runtime knows none of them.
"""

import importlib.metadata
import warnings

__all__ = ["GROUP", "install_observers"]

GROUP = "npu_runtime.observers"


def install_observers() -> None:
    """Calls each; one that fails is a warning, as watching must not break what is watched."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()()
        except Exception as error:  # noqa: BLE001  # whatever is broken, torch must import
            warnings.warn(
                f"npu: the observer {entry.name} ({entry.value}) could not be installed: "
                f"{type(error).__name__}: {error}. Reinstall its wheel, or unset NPU_ATTACH. "
                "[observer]",
                RuntimeWarning,
                stacklevel=2,
            )

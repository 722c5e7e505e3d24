"""Says of which runs the device's layers are told to observers, and whether programs can tell them.

The layers come as events of category ``layer`` (observe.py). The sampling is native
(csrc/program/layer_samples.cpp).
"""

from npu_runtime import _C
from npu_runtime.config import config

__all__ = ["is_wanted", "start", "stop"]

_is_on = False


def is_wanted() -> bool:
    """Whether programs that are loaded now have to record their layers."""
    return _is_on or config.profile_layers


def start(*, first: int, every: int) -> None:
    """Tells the layers of each program's first runs, and then of every so many.

    Programs have layers to tell when they were loaded after this, or with ``NPU_PROFILE_LAYERS=1``.
    Reading the layers of a run takes 0.14 to 0.33 ms.

    Args:
        first: How many runs of each program at the start.
        every: After those each run of this distance; 0 for none.
    """
    global _is_on
    _is_on = True
    _C.set_layer_sampling(first, every)


def stop() -> None:
    """Ends it; programs that were loaded for it keep their small cost."""
    global _is_on
    _is_on = False
    _C.set_layer_sampling(0, 0)

"""Selects runs that report their layers to observers, and reports the origins of layers.

The sampling is native (csrc/program/layer_samples.cpp). The creator of a program provides the
origins.
"""

from collections.abc import Mapping

from npu_runtime import observe
from npu_runtime.config import config

__all__ = ["is_wanted", "start", "stop", "tell_origins"]

_is_on = False
_origins: dict[str, Mapping[str, tuple[str, str]]] = {}


def is_wanted() -> bool:
    """Whether programs that are loaded now have to record their layers."""
    return _is_on or config.profile_layers


def start(*, first: int, every: int) -> None:
    """Tells the layers of each program's first runs, and then of every so many.

    Programs report layers if they were loaded after this call, or with ``NPU_PROFILE_LAYERS=1``.
    Reading the layers of a run takes 0.14 to 0.33 ms.

    Args:
        first: number of runs of each program to report at the start.
        every: interval of later reported runs; 0 for none.
    """
    global _is_on
    from npu_runtime import _C  # late, here and below: it needs torch's libraries

    _is_on = True
    _C.set_layer_sampling(first, every)
    for program, origins in list(_origins.items()):
        _tell(program, origins)


def tell_origins(program: str, origins: Mapping[str, tuple[str, str]]) -> None:
    """Tells where the layers of a program come from, if layers are recorded; otherwise nothing.

    Emits an instant of category ``layer_origins`` with the program's name and ``origins`` in its
    args; each later `start` emits it again for new listeners.

    Args:
        program: name of the program; replaces earlier origins of that name.
        origins: the part of a layer's name before its first slash -> path of the torch module and
            "file.py:123" of the Python line; "" if unknown.
    """
    if is_wanted():
        _origins[program] = origins
        _tell(program, origins)


def _tell(program: str, origins: Mapping[str, tuple[str, str]]) -> None:
    observe.instant("layer_origins", program, origins=origins)


def stop() -> None:
    """Ends it; programs that were loaded for it keep their small cost."""
    global _is_on
    from npu_runtime import _C

    _is_on = False
    _C.set_layer_sampling(0, 0)

"""Patches libraries for npu after their import."""

import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from functools import partial

from npu_command.import_hooks import while_importing
from npu_runtime.library_patches.replacing import change_when_imported

__all__ = ["install"]

_logger = logging.getLogger(__name__)
_HUGGING_FACE = ("accelerate", "diffusers", "transformers")
_LIGHTNING = ("lightning", "lightning_fabric")


def install(*, hugging_face: bool) -> None:
    """Patches Lightning and Hugging Face's libraries, now or when they are imported."""
    for library in (*(_HUGGING_FACE if hugging_face else ()), *_LIGHTNING):
        if library in sys.modules:  # its import may have begun, and imports torch now
            _begin(library)
        else:
            while_importing(library, partial(_beginning, library))


@contextlib.contextmanager
def _beginning(library: str) -> Iterator[None]:
    _begin(library)
    yield


def _begin(library: str) -> None:
    """Patches each module of a library after its import."""
    is_hugging_face = library in _HUGGING_FACE
    if is_hugging_face and _has_ascend():
        _logger.warning(
            "npu: Huawei's torch_npu is installed, so %s is left to it. NPU_HUGGINGFACE=0 "
            "disables this message.",
            library,
        )
        return
    # Imports the patches only after the library.
    home = "hugging_face" if is_hugging_face else "lightning"
    changes = importlib.import_module(f"npu_runtime.library_patches.{home}").CHANGES[library]
    for name, change in changes.items():
        change_when_imported(name, change)


def _has_ascend() -> bool:
    return "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None

"""Waits for the import of Hugging Face's libraries, and then changes what they know of npu."""

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
# The module here that has the changes of a library. It is not imported before the library is.
_LIBRARIES = {
    "accelerate": "accelerate_changes",
    "diffusers": "diffusers_changes",
    "transformers": "transformers_changes",
}


def install() -> None:
    """Has each library changed when it is imported, or now; imports none of them."""
    for library, changes in _LIBRARIES.items():
        if library in sys.modules:  # its import may have begun, and imports torch now
            _begin(library, changes)
        else:
            while_importing(library, partial(_beginning, library, changes))


@contextlib.contextmanager
def _beginning(library: str, changes: str) -> Iterator[None]:
    _begin(library, changes)
    yield


def _begin(library: str, changes: str) -> None:
    """Has each module of a library changed once it is there."""
    if "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None:
        _logger.warning(
            "npu: Huawei's torch_npu is installed, so %s is left to it. With NPU_HUGGINGFACE=0 "
            "this is not said.",
            library,
        )
        return
    table = importlib.import_module(f"npu_runtime.hugging_face.{changes}").CHANGES
    for name, change in table.items():
        change_when_imported(name, change)

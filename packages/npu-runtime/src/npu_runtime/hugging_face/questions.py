"""Answers to the questions by which libraries find out whether npu is there."""

import sys
from types import FrameType, ModuleType

from npu_runtime.hugging_face import ascend_calls
from npu_runtime.library_patches.choice import picks_npu
from npu_runtime.library_patches.replacing import forget_answers, replace

__all__ = ["answer_in", "is_npu_available"]

# Modules that keep the answer, in order to call Ascend's kernels in their way only: transformers
# turns an added mask into a boolean one, which is another mask where it is not all or nothing.
_KEEPS_ANSWER = {"transformers.integrations.sdpa_attention"}
# Libraries that call torch_npu in functions of a module that imports it: they get ours.
_CALLS_ASCEND = ("diffusers.", "trl.")


def is_npu_available(check_device: bool = False) -> bool:
    """Whether npu is the device of a program that names none.

    Code that itself calls Huawei's torch_npu is told no, and goes the way of other devices.

    Args:
        check_device: changes nothing; the libraries' own functions have it.
    """
    return not _means_ascend(sys._getframe(1)) and picks_npu()


def _cache_clear() -> None:
    """Does nothing: the libraries' own functions remember their answers, this one does not."""


is_npu_available.cache_clear = _cache_clear  # type: ignore[attr-defined]
# torch.compile puts the answer into its graph, as it does with transformers' own function.
is_npu_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def answer_in(module: ModuleType, question: str) -> None:
    """Answers a question of a library in the place of its own function."""
    if replace(module, question, is_npu_available):
        forget_answers(module, {question})


def _means_ascend(caller: FrameType) -> bool:
    """Whether the code that asks is about Huawei's own package."""
    module = str(caller.f_globals.get("__name__"))
    is_import = caller.f_code.co_name == "<module>"
    if is_import and module in _KEEPS_ANSWER:
        return True
    if not any(name.partition(".")[0] == "torch_npu" for name in caller.f_code.co_names):
        return False
    if is_import and module.startswith(_CALLS_ASCEND):
        caller.f_globals.setdefault("torch_npu", ascend_calls)
    return True

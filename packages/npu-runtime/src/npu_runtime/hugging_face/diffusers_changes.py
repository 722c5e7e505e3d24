"""What diffusers is told of npu; each function runs when its module is there."""

from types import ModuleType

from npu_runtime.hugging_face.questions import answer_in

__all__ = ["CHANGES"]


def _answer(module: ModuleType) -> None:
    answer_in(module, "is_torch_npu_available")


CHANGES = {"diffusers.utils.import_utils": _answer}

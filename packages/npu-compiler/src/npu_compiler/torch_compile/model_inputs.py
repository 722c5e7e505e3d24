"""Inputs of modules compiled in place: moves them to the device, and reports refused ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import TorchRuntimeError
from torch.utils import _pytree

from npu_compiler.errors import ModelInputError

__all__ = ["moved", "refusals_named"]

_in_call = threading.local()


def _is_told(record: logging.LogRecord) -> bool:
    """Whether torch may log a record; drops those that a ModelInputError repeats."""
    return not getattr(_in_call, "depth", 0) or record.exc_info is None


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_told)


@contextmanager
def refusals_named(model: str, arguments: Any) -> Iterator[None]:
    """Raises a ModelInputError if an operator of the model refuses its inputs.

    Args:
        model: the name of its class.
        arguments: nested arguments of the call.

    Raises:
        ModelInputError: [refused-input] with the operator's reason.
    """
    _in_call.depth = getattr(_in_call, "depth", 0) + 1
    try:
        yield
    except TorchRuntimeError as failure:
        reason: BaseException = failure
        while reason.__cause__ is not None or reason.__context__ is not None:
            reason = reason.__cause__ or reason.__context__  # type: ignore[assignment]
        said = (str(reason).strip().splitlines() or ["no reason given"])[0][:300].rstrip(".")
        raise ModelInputError(
            f"{model}: an operator rejects these inputs: {said}. Got "
            f"{_shapes(arguments)}. Pass inputs of shapes and dtypes that the model accepts.",
            code="refused-input",
        ) from None
    finally:
        _in_call.depth -= 1


def _shapes(arguments: Any) -> str:
    """Returns dtypes and sizes of tensors, because the operator's reason may use symbols."""
    tensors = [one for one in _pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor)]
    texts = [f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in tensors]
    return ", ".join(texts) or "no tensors"


def moved(arguments: Any, device: str) -> Any:
    """Returns nested arguments with their tensors on a device."""
    return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), arguments)

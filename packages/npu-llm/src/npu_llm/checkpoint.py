"""Loads a model and its tokenizer with transformers, from a checkpoint folder or a GGUF file.

Finding the files is npu_llm.source's work, capturing the model npu_llm.capture's.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from npu_llm.errors import ModelError
from npu_llm.source import ModelSource

__all__ = ["load_model", "load_tokenizer", "read_gguf_once"]

_gguf_lock = threading.RLock()

# What transformers and its readers raise for files that they cannot make sense of.
_READ_FAILURES = (OSError, ValueError, KeyError, RuntimeError, TypeError, struct.error)


def load_model(
    source: ModelSource,
    *,
    trust_remote_code: bool = False,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Any:
    """Loads a causal language model on the CPU in float32.

    Args:
        source: where it is.
        trust_remote_code: whether model code inside the checkpoint may run.
        on_progress: called with the share of the weights that is loaded.

    Returns:
        A transformers model in eval mode.

    Raises:
        ModelError: [model-unreadable] when transformers cannot load it, [weights-missing] when the
            files lack some of its weights.
    """
    arguments: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    if source.gguf_file is not None:
        arguments["gguf_file"] = source.gguf_file
    try:
        with _gguf_progress(on_progress):
            model, info = AutoModelForCausalLM.from_pretrained(
                str(source.folder), output_loading_info=True, **arguments
            )
    except _READ_FAILURES as failure:
        raise _unreadable(source, "the model", failure) from failure
    if missing := sorted(info["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ModelError(
            f"{source.path}: the model's weights must all be there; {len(missing)} are missing, "
            f"such as {missing[0]}. Get the whole checkpoint.",
            code="weights-missing",
        )
    # A dequantized model is a plain one: without this transformers refuses to save its config.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    experts = getattr(model, "set_experts_implementation", None)
    if experts is not None and _has_experts(model.config):
        experts("batched_mm")  # the default one wants bfloat16 and sizes that depend on the data
    return model.eval()


def load_tokenizer(source: ModelSource, *, trust_remote_code: bool = False) -> Any | None:
    """Loads the tokenizer that lies with a model; None when there is none.

    Raises:
        ModelError: [model-unreadable] when there is one and it cannot be loaded.
    """
    if source.gguf_file is None and not any(source.folder.glob("tokenizer*")):
        return None
    arguments: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if source.gguf_file is not None:
        arguments["gguf_file"] = source.gguf_file
    try:
        return AutoTokenizer.from_pretrained(str(source.folder), **arguments)
    except _READ_FAILURES as failure:
        raise _unreadable(source, "the tokenizer", failure) from failure


def _has_experts(config: Any) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def _unreadable(source: ModelSource, what: str, failure: Exception) -> ModelError:
    lines = str(failure).strip().splitlines()
    reason = lines[0] if lines else type(failure).__name__
    return ModelError(
        f"{source.path}: {what} cannot be loaded: {reason} Check the files, and that transformers "
        "knows the architecture.",
        code="model-unreadable",
    )


@contextmanager
def read_gguf_once() -> Iterator[None]:
    """Has transformers parse a GGUF file once while it loads config, weights and tokenizer.

    It reads the file anew for each, and builds the table of tensor names anew for each module: of
    the 14 s for SmolLM2-135M, 7 s (transformers 5.23, 2026-11-20). Inside, gguf's reader and table
    give the same object for the same arguments.
    """
    names = ("GGUFReader", "get_tensor_name_map")
    with _gguf_lock:
        originals = {name: getattr(gguf, name) for name in names}
        try:
            for name, original in originals.items():
                setattr(gguf, name, functools.cache(original))
            yield
        finally:
            for name, original in originals.items():
                setattr(gguf, name, original)


@contextmanager
def _gguf_progress(report: Callable[[float], None]) -> Iterator[None]:
    """Passes on the progress that transformers would draw while it dequantizes."""
    drawn = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    if drawn is None:
        yield
        return

    def counted(items: Any, **_: Any) -> Iterator[Any]:
        total = len(items)
        for index, item in enumerate(items):
            report(index / total)
            yield item

    modeling_gguf_pytorch_utils.tqdm = counted
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn

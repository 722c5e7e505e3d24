"""Starts a model of any kind, while slow imports run beside the loading."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.entries.build import Prepared, prepare
from npu_llm.entries.exported import is_exported, prepare_exported
from npu_llm.entries.load_options import LoadOptions
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["load", "make_ready"]


@public_call
def load(name_or_path: str | Path, **arguments: Any) -> NPUModelForCausalLM:
    """Loads a model as NPUModelForCausalLM.from_pretrained does, but faster in a new process.

    An exported folder starts without transformers' model code and, on the device and driver that it
    was exported with, without compiling anything.

    Args:
        name_or_path: an exported folder, or what from_pretrained takes.
        arguments: those of from_pretrained.

    Raises:
        NpuError: as from_pretrained does.
    """
    options = LoadOptions(**arguments)
    if not Path(name_or_path).expanduser().exists():
        ready = make_ready(name_or_path, options)
        return _model_class().from_ready(ready)
    # transformers' generation code takes longer to import than a cached program takes to load, and
    # that loading happens outside Python.
    with ThreadPoolExecutor(1) as pool:
        importing = pool.submit(_model_class)
        ready = make_ready(name_or_path, options)
        return importing.result().from_ready(ready)


def make_ready(name_or_path: str | Path, options: LoadOptions) -> Prepared:
    """Prepares a model to run; raises what from_pretrained does."""
    path = Path(name_or_path).expanduser()
    if is_exported(path):
        return prepare_exported(path, options)
    return prepare(name_or_path, options)


def _model_class() -> type[NPUModelForCausalLM]:
    found: type[NPUModelForCausalLM] = importlib.import_module(
        "npu_llm.generation.model"
    ).NPUModelForCausalLM
    return found

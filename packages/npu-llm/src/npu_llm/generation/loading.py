"""Starting a model of any kind, with the slow imports beside the loading."""

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
    """Loads a model as NPUModelForCausalLM.from_pretrained does, sooner in a new process.

    An exported folder starts without transformers' model code, and where device and driver are
    those that it was exported with, without compiling anything.

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
    # transformers' generation code takes longer to import than a kept program to load, which
    # happens outside of Python.
    with ThreadPoolExecutor(1) as pool:
        importing = pool.submit(_model_class)
        ready = make_ready(name_or_path, options)
        return importing.result().from_ready(ready)


def make_ready(name_or_path: str | Path, options: LoadOptions) -> Prepared:
    """Makes a model ready to run; errors are those of from_pretrained."""
    path = Path(name_or_path).expanduser()
    if is_exported(path):
        return prepare_exported(path, options)
    return prepare(name_or_path, options)


def _model_class() -> type[NPUModelForCausalLM]:
    found: type[NPUModelForCausalLM] = importlib.import_module(
        "npu_llm.generation.model"
    ).NPUModelForCausalLM
    return found

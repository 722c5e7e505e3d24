"""Starts a model of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npu_llm.generation.step_model import LightModel
from npu_llm.models.build import Prepared, prepare
from npu_llm.models.entry import is_exported
from npu_llm.models.export import prepare_exported
from npu_llm.models.load_options import LoadOptions
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["load", "make_ready"]


@public_call
def load(name_or_path: str | Path, **arguments: Any) -> NPUModelForCausalLM:
    """Loads a model as NPUModelForCausalLM.from_pretrained does, but faster in a new process.

    From the compile cache or an exported folder a model starts without transformers, which is
    imported when something of it is first used, such as `generate` or `config`. An exported folder
    starts, on the device and driver that it was exported with, without compiling anything.

    Args:
        name_or_path: an exported folder, or what from_pretrained takes.
        arguments: those of from_pretrained.

    Raises:
        NpuError: as from_pretrained does.
    """
    ready = make_ready(name_or_path, LoadOptions(**arguments))
    # Until something of transformers is asked of it, it is this.
    light: Any = LightModel(ready.entry, ready.pipeline, ready.entry.precision, ready.report)
    return cast("NPUModelForCausalLM", light)


def make_ready(name_or_path: str | Path, options: LoadOptions) -> Prepared:
    """Prepares a model to run; raises what from_pretrained does."""
    path = Path(name_or_path).expanduser()
    if is_exported(path):
        return prepare_exported(path, options)
    return prepare(name_or_path, options)

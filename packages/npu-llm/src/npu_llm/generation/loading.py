"""Starting a model of any kind: which way it goes, and the slow imports beside the loading.

The ways are npu_llm.entries.build's, through the compile cache, and npu_llm.entries.exported's.
What is started is npu_llm.generation.model's class.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import npu_runtime
from npu_llm.entries.build import Prepared, prepare
from npu_llm.entries.exported import is_exported, prepare_exported
from npu_llm.errors import OptionError
from npu_llm.precision import parse_kv_cache, parse_precision
from npu_llm.progress import ProgressListener
from npu_llm.steps.pipelines import choose_pipeline
from npu_llm.verification.verifier import parse_verify
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
    if not Path(name_or_path).expanduser().exists():
        ready = make_ready(name_or_path, **arguments)
        return _model_class().from_ready(ready)
    # transformers' generation code takes longer to import than a kept program to load, which
    # happens outside of Python.
    with ThreadPoolExecutor(1) as pool:
        importing = pool.submit(_model_class)
        ready = make_ready(name_or_path, **arguments)
        return importing.result().from_ready(ready)


def make_ready(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    max_context: int | None = None,
    pipeline: str | None = None,
    kv_cache: str | None = None,
    verify: str = "first",
    device: str | torch.device | None = None,
    cache_dir: str | Path | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    on_progress: ProgressListener | None = None,
) -> Prepared:
    """Makes a model ready to run; arguments and errors are those of from_pretrained."""
    precision = parse_precision(dtype)
    kept_as = parse_kv_cache(kv_cache)
    when = parse_verify(verify)
    if device is not None and torch.device(device).type != "npu":
        raise OptionError(
            f"device: the model runs on npu; got {device!r}. Leave it away, and choose what "
            "serves as npu with the variable NPU_DEVICE.",
            code="other-device",
        )
    chosen = choose_pipeline(pipeline, npu_runtime.device_info().device)
    cache = None if cache_dir is None else Path(cache_dir)
    path = Path(name_or_path).expanduser()
    if is_exported(path):
        return prepare_exported(
            path,
            precision=None if dtype in (None, "auto") else precision,
            pipeline=None if pipeline in (None, "auto") else chosen,
            max_context=max_context,
            kv_cache=kept_as,
            verify=when,
            cache_dir=cache,
            on_progress=on_progress,
        )
    hub = {"revision": revision, "token": token}
    return prepare(
        name_or_path,
        precision=precision,
        pipeline=chosen,
        max_context=max_context,
        kv_cache=kept_as,
        verify=when,
        cache_dir=cache,
        gguf_file=gguf_file,
        trust_remote_code=trust_remote_code,
        hub={key: value for key, value in hub.items() if value is not None},
        on_progress=on_progress,
    )


def _model_class() -> type[NPUModelForCausalLM]:
    found: type[NPUModelForCausalLM] = importlib.import_module(
        "npu_llm.generation.model"
    ).NPUModelForCausalLM
    return found

"""The API of intel-npu-acceleration-library, implemented with npu-llm's packages.

`python -m npu_llm.compat` makes it importable under that library's name. Its conventions that
affect results are preserved here; the migration guide lists them.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "v1.4.0"  # the release with these names

_HOMES = {
    "NPUAutoModel": "modelling",
    "NPUModel": "modelling",
    "NPUModelForCausalLM": "modelling",
    "NPUModelForSeq2SeqLM": "modelling",
    "compile": "compiler",
    "enable_npu_device": "compiler",
    "float16": "dtypes",
    "int4": "dtypes",
    "int8": "dtypes",
}
_MODULES = (
    "backend",
    "compiler",
    "device",
    "dtypes",
    "external",
    "functional",
    "modelling",
    "nn",
    "optimizations",
    "quantization",
)

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  # all are texts


def __getattr__(name: str) -> Any:
    # Imported late, because transformers and dynamo take seconds.
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

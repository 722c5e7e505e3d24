"""Kernel programs on disk, among the device's programs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from npu_compiler.programs.cache import ProgramCache
from npu_compiler.programs.execution import KernelForm
from npu_ops.errors import DamagedFileError
from npu_ops.kernel_programs.weights import PackedLinear, read_weights, write_weights

__all__ = ["find_kernels", "kernel_options", "store_kernels"]

_logger = logging.getLogger(__name__)

_WEIGHTS = "weights.safetensors"


def kernel_options(home: str) -> dict[str, str]:
    """Returns what stands in a key for the options of the device's compiler.

    Args:
        home: device type of the results.
    """
    return {"target": "kernels", "home": home, "npu-ops": version("npu-ops")}


def store_kernels(
    cache: ProgramCache,
    key: str,
    form: KernelForm,
    weights: Mapping[str, PackedLinear | torch.Tensor],
    *,
    name: str,
) -> None:
    """Keeps a program; a directory that cannot be written costs a log line.

    Args:
        cache: where.
        key: from content_key.
        form: the program.
        weights: its own.
        name: what a listing calls it.
    """

    def write(place: Path) -> None:
        write_weights(place / _WEIGHTS, weights.items())

    cache.store_files(key, write, name=name, facts={"kernels": form.as_json()})


def find_kernels(
    cache: ProgramCache, key: str
) -> tuple[KernelForm, Mapping[str, PackedLinear | torch.Tensor]] | None:
    """Returns the program of a key with its weights, if both are kept whole."""
    found = cache.find_files(key)
    if found is None:
        return None
    place, facts = found
    try:
        return KernelForm.from_json(facts["kernels"]), read_weights(place / _WEIGHTS)
    except (OSError, DamagedFileError, KeyError, TypeError, ValueError) as failure:
        _logger.warning("program cache: kernel program %s cannot be used (%s)", key, failure)
        shutil.rmtree(place, ignore_errors=True)  # so that it is made again
        return None

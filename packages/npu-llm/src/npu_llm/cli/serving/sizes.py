"""How much memory the models of a server will take, from their files' headers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from npu_llm.checkpoint.facts import read_facts
from npu_llm.checkpoint.requirements import weights_bytes
from npu_llm.checkpoint.source import find_installed_weights, find_source
from npu_llm.entries.export_folder import is_exported
from npu_llm.entries.load_options import LoadOptions
from npu_llm.errors import OptionError
from npu_llm.serving.models.kinds import Kind
from npu_llm.serving.scheduling.engine import CACHE_BYTES, EngineOptions

__all__ = ["sizes_of"]


def sizes_of(
    each: Mapping[str, argparse.Namespace],
    kinds: Mapping[str, Kind],
    engine: EngineOptions,
    *,
    most_bytes: int,
) -> dict[str, int]:
    """Returns the bytes that each model takes: its weights as they run, its keys and values.

    Args:
        each: the options of each model, and of each adapter, whose program has weights of its own.
        kinds: what the models are; adapters are not among them.
        engine: bounds of those that write.
        most_bytes: how much all that are loaded at once may take.

    Raises:
        OptionError: [models-memory] for a model that alone takes more.
        ModelError: as npu_llm.checkpoint.facts.read_facts does.
    """
    found = {}
    for name, options in each.items():
        found[name] = _weights(options, is_adapted=name not in kinds)
        if kinds.get(name) == "text":
            found[name] += CACHE_BYTES if engine.cache_bytes is None else engine.cache_bytes
        if found[name] > most_bytes:
            raise OptionError(
                f"--max-memory: must hold the largest model with its cache; got {most_bytes >> 20} "
                f"MB for {name}, which takes {found[name] >> 20}. Raise it, or lower "
                "--cache-memory.",
                code="models-memory",
            )
    return found


def _weights(options: argparse.Namespace, *, is_adapted: bool) -> int:
    if options.model is not None and is_exported(folder := Path(options.model).expanduser()):
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    source = find_installed_weights() if options.model is None else find_source(options.model)
    wanted = LoadOptions(dtype=options.dtype, pipeline=options.pipeline)
    kernels = wanted.pipeline_here == "kernels" and not is_adapted
    return weights_bytes(read_facts(source), wanted.precision, kernels=kernels)

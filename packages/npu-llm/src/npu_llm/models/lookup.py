"""Looks up a model: its files, and its entry in the compile cache; does not need torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from npu_llm.checkpoint.facts import ModelFacts, needs_long_ropes, read_facts
from npu_llm.checkpoint.requirements import check_memory
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.models.compile_cache import CompileCache, entry_key, surroundings
from npu_llm.models.entry import Entry
from npu_llm.models.load_options import LoadOptions

__all__ = ["Located", "locate"]


@dataclass(frozen=True, kw_only=True)
class Located:
    """The result of looking up a model.

    Attributes:
        options: its load options on the device in use.
        pipeline: its pipeline.
        source: its files.
        facts: their facts.
        cache: the compile cache.
        keys: keys of its cache entries by pipeline.
        entry: its cache entry; None if there is none.
    """

    options: LoadOptions
    pipeline: PipelineName
    source: ModelSource
    facts: ModelFacts
    cache: CompileCache
    keys: Mapping[PipelineName, str]
    entry: Entry | None


def locate(name_or_path: str | Path, options: LoadOptions) -> Located:
    """Looks up a model, and checks that the device and files support the options.

    Arguments and errors are those of npu_llm.models.build.prepare, except errors of building.
    """
    options = options.for_device()
    pipeline = options.pipeline_here
    options.check_pipeline(pipeline)
    here = surroundings()
    cache = CompileCache(options.cache_folder or read_settings().cache_dir)
    source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
    long_ropes = needs_long_ropes(source, options.max_context)
    known = read_facts(source) if options.needs_facts else None
    names: tuple[PipelineName, ...] = ("kernels", "dynamic", pipeline)
    adapted = options.adapted_modules
    keys = {
        name: entry_key(
            source, options.precision_for(known, name), name, here, adapted,
            is_for_npus=options.is_for_npus, ignore_unexpected=options.ignore_unexpected,
            has_long_ropes=long_ropes,
        )
        for name in names
    }  # fmt: skip
    entry = cache.find(keys[pipeline])
    if entry is None and pipeline == "dynamic":
        entry = _made_instead_of_kernels(cache, keys["kernels"])
    facts = (known or read_facts(source)) if entry is None else entry.facts
    bound = facts.longest_context if entry is None else entry.model_context
    options.check_context(source.name, bound)
    precision = options.precision_for(facts, pipeline) if entry is None else entry.precision
    check_memory(
        source.name, facts, precision,
        max_context=options.max_context, kv_cache=options.kept_as, is_built=entry is not None,
        kernels=(pipeline if entry is None else entry.pipeline) == "kernels",
        has_bounds=options.chosen_keys is not None,
    )  # fmt: skip
    return Located(
        options=options, pipeline=pipeline, source=source, facts=facts, cache=cache, keys=keys,
        entry=entry,
    )  # fmt: skip


def _made_instead_of_kernels(cache: CompileCache, key: str) -> Entry | None:
    """Returns the dynamic entry that was built instead of a kernel program; None if there is none.

    Args:
        cache: the compile cache.
        key: key of the kernel program.
    """
    entry = cache.find(key)
    if entry is None or entry.pipeline != "dynamic":
        return None
    about = {name: value for name, value in entry.about.items() if name != "why_not_kernels"}
    return replace(entry, about=about)

"""A model's second program, which takes adapters as inputs, and the choice between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from npu_llm.adapters.lora import AdapterFile, common_rank, of_rank, read_adapter
from npu_llm.errors import OptionError
from npu_llm.generation.adapters import Adapters, check_usable
from npu_llm.models.build import Prepared, prepare
from npu_llm.models.entry import Entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.runners import DynamicPipeline, Pipeline, StaticPipeline
from npu_runtime import device_info

__all__ = ["AdaptedModel"]


class AdaptedModel:
    """Loads adapters for a model, and gives the program to run with a choice of them."""

    def __init__(self, entry: Entry, pipeline: Pipeline) -> None:
        self._plain = entry, pipeline
        self._adapters = Adapters()
        self._ready: Prepared | None = None

    @property
    def plain_entry(self) -> Entry:
        """What runs steps without an adapter."""
        return self._plain[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the adapters that are loaded."""
        return self._adapters.names

    def load(self, path: str | Path, name: str | None) -> str:
        """Loads an adapter; see NPUModelForCausalLM.load_adapter."""
        file = read_adapter(path)
        name = file.path.resolve().name if name is None else name
        if name in self.names:
            raise OptionError(
                f"load_adapter: must give each adapter a name of its own; got {name!r} again. "
                "Pass another name.",
                code="adapter-name",
            )
        check_usable(file)
        ready = self._ready
        modules = self._adapters.modules_with(file)
        if ready is None or set(modules) - set(ready.entry.adapted):
            ready = self._prepared(modules, file)
        self._adapters.add(name, file, ready.entry.adapted)
        self._ready = ready
        return name

    def choose(self, rows: Sequence[Mapping[str, float]]) -> tuple[Entry, Pipeline]:
        """Returns what runs steps with the given scales, for each row or once for all."""
        self._adapters.check([name for row in rows for name in row])
        if self._ready is None or not any(rows):
            return self._plain
        pipeline = self._ready.pipeline
        entry = self._ready.entry
        inputs = self._adapters.inputs(rows, entry.adapted)
        if isinstance(pipeline, StaticPipeline):
            rank = common_rank(inputs)
            given = of_rank(inputs, rank)
            return entry, replace(pipeline, programs=pipeline.for_rank(rank), given=given)
        assert isinstance(pipeline, DynamicPipeline), "it was prepared as one of the two"
        return entry, replace(pipeline, constants=inputs)

    def _prepared(self, modules: tuple[str, ...], file: AdapterFile) -> Prepared:
        entry = self._plain[0]
        source = Path(str(entry.about["source"]))
        is_exported = "made_with" in entry.about  # its weights may be rounded in another way
        if is_exported or not source.exists():
            raise OptionError(
                f"{file.path}: an adapter needs the model's own files, to compile a program that "
                f"takes it; got {entry.folder}. Load the checkpoint, or merge the adapter into it "
                "with `npu-llm merge`.",
                code="adapter-source",
            )
        is_static = entry.pipeline == "static" or device_info().device.startswith("NPU")
        options = LoadOptions(
            dtype=entry.precision.name,
            pipeline="static" if is_static else "dynamic",
            max_context=entry.max_context,
            kv_cache=entry.kv_cache,
            cache_dir=entry.folder.parent,
            adapted_modules=modules,
        )
        return prepare(source, options)

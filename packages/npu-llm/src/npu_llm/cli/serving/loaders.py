"""Makes the registry of lazily loaded models from the options of `npu-llm serve`."""

from __future__ import annotations

import argparse
import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from npu_command.output import import_notice
from npu_llm.adapters.lora import read_adapter
from npu_llm.checkpoint.facts import read_facts
from npu_llm.checkpoint.requirements import weights_bytes
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights, find_source
from npu_llm.cli.terminal import Display
from npu_llm.engine.engine import CACHE_BYTES, EngineOptions
from npu_llm.errors import OptionError
from npu_llm.generation.adapters import check_usable
from npu_llm.models.entry import is_exported
from npu_llm.models.load_options import LoadOptions
from npu_llm.serving.models.registry import CLASSES, Kind, ModelRegistry, Served, kind_of
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedEncoder, ServedReranker, ServedSpeech

__all__ = ["make_registry"]


class _Base:
    """A language model that its adapters share while it is loaded."""

    def __init__(self, options: argparse.Namespace, display: Display) -> None:
        self._options = options
        self._display = display
        self._loaded: weakref.ref[Any] | None = None

    def get(self) -> Any:
        """Returns the model; loads it if needed."""
        with import_notice():
            from npu_llm.cli.session import start

        model = None if self._loaded is None else self._loaded()
        if model is None:
            model = start(self._options, self._display)
            self._loaded = weakref.ref(model)
        return model

    def with_adapter(self, name: str, path: Path, scale: float) -> Any:
        """Returns a copy with an adapter; both share the same programs."""
        base = self.get()
        if name not in base.adapters:
            base.load_adapter(path, name)
        adapted = copy.copy(base)
        adapted.set_adapter(name, scale=scale)
        return adapted


def make_registry(
    options: argparse.Namespace, engine: EngineOptions, display: Display
) -> ModelRegistry:
    """Returns the registry of the models in the options; a single model is loaded at once.

    Raises:
        OptionError: [model-alias], [adapter-model], [adapter-source], [models-memory].
        NpuError: if an adapter cannot be used, or the only model does not start.
    """
    paths = options.model or [None]
    names = _names(paths, options.alias, [name for name, _, _ in options.adapter])
    each = {
        name: argparse.Namespace(**{**vars(options), "model": path})
        for name, path in zip(names, paths, strict=False)
    }
    kinds = {name: kind_of(one.model) for name, one in each.items()}
    bases = {name: _Base(each[name], display) for name in each if kinds[name] == "text"}
    loaders: dict[str, Callable[[], Served]] = {}
    for name, one in each.items():
        if name in bases:
            loaders[name] = partial(_load_text, name, one, bases[name], engine, display)
        else:
            loaders[name] = partial(_LOADERS[kinds[name]], name, one, display)
    parent = _parent(bases, each) if options.adapter else ""
    for name, path, scale in options.adapter:
        check_usable(read_adapter(path))
        each[name] = each[parent]
        loaders[name] = partial(_load_adapted, name, bases[parent], path, scale, engine)
    max_bytes = None if options.max_memory is None else options.max_memory << 20
    sizes = {} if max_bytes is None else _sizes(each, kinds, engine, max_bytes=max_bytes)
    registry = ModelRegistry(
        loaders,
        kinds={name: CLASSES[kind] for name, kind in kinds.items()},
        parents={name: parent for name, _, _ in options.adapter},
        idle_s=options.unload_after,
        max_loaded=options.max_loaded,
        sizes=sizes,
        max_bytes=max_bytes,
    )
    if len(paths) == 1:  # so that its errors appear at the start
        registry.loaded[names[0]] = loaders[names[0]]()
    return registry


def _sizes(
    each: Mapping[str, argparse.Namespace],
    kinds: Mapping[str, Kind],
    engine: EngineOptions,
    *,
    max_bytes: int,
) -> dict[str, int]:
    """Returns the memory that each model takes in bytes: weights as they run, and KV cache.

    The sizes come from the headers of the models' files.

    Args:
        each: options of each model and of each adapter; its program has separate weights.
        kinds: kinds of the models, without the adapters.
        engine: options of the text models.
        max_bytes: limit for all loaded models together.

    Raises:
        OptionError: [models-memory] if one model alone exceeds the limit.
        ModelError: as npu_llm.checkpoint.facts.read_facts does.
    """
    found = {}
    for name, options in each.items():
        found[name] = _weights_bytes(options, is_adapted=name not in kinds)
        if kinds.get(name) == "text":
            found[name] += CACHE_BYTES if engine.cache_bytes is None else engine.cache_bytes
        if found[name] > max_bytes:
            raise OptionError(
                f"`--max-memory` must be at least {found[name] >> 20} MB for {name} with its KV "
                f"cache, got {max_bytes >> 20} MB. Raise it, or lower --cache-memory.",
                code="models-memory",
            )
    return found


def _weights_bytes(options: argparse.Namespace, *, is_adapted: bool) -> int:
    if options.model is not None and is_exported(folder := Path(options.model).expanduser()):
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    source = find_installed_weights() if options.model is None else find_source(options.model)
    wanted = LoadOptions(dtype=options.dtype, pipeline=options.pipeline)
    kernels = wanted.pipeline_here == "kernels" and not is_adapted
    facts = read_facts(source)
    precision = wanted.precision_for(facts, "kernels" if kernels else "dynamic")
    return weights_bytes(facts, precision, kernels=kernels)


def _parent(bases: Mapping[str, _Base], each: Mapping[str, argparse.Namespace]) -> str:
    """Returns the name of the base model of the adapters."""
    if len(bases) != 1:
        raise OptionError(
            f"`--adapter` must be given with exactly one language model, got {len(bases)}. Serve "
            "each model with its adapters on a separate port.",
            code="adapter-model",
        )
    (name,) = bases
    path = each[name].model
    if path is not None and is_exported(Path(path).expanduser()):
        raise OptionError(
            f"`--model` must be a checkpoint to serve adapters, got the exported folder {path}. "
            "Pass the checkpoint, or merge the adapter into it with `npu-llm merge`.",
            code="adapter-source",
        )
    return name


def _load_text(
    name: str, options: argparse.Namespace, base: _Base, engine: EngineOptions, display: Display
) -> ServedModel:
    from npu_llm.cli.tasks.describe import reads_images, start_image_model

    if options.model is None or not reads_images(options.model):
        return ServedModel(name, base.get(), engine)
    from npu_llm.serving.models.vision_model import ServedVisionModel

    model, processor = start_image_model(options, display)
    return ServedVisionModel(name, model, processor, engine)


def _load_adapted(
    name: str, base: _Base, path: Path, scale: float, engine: EngineOptions
) -> ServedModel:
    return ServedModel(name, base.with_adapter(name, path, scale), engine)


def _load_encoder(name: str, options: argparse.Namespace, display: Display) -> ServedEncoder:
    from npu_llm.cli.tasks.starting import start_task

    model = start_task("NPUModelForFeatureExtraction", options, display)
    return ServedEncoder(name, model, max_waiting=options.max_queue)


def _load_speech(name: str, options: argparse.Namespace, display: Display) -> ServedSpeech:
    from npu_llm.cli.tasks.starting import start_transcriber

    return ServedSpeech(name, start_transcriber(options, display), max_waiting=options.max_queue)


def _load_reranker(name: str, options: argparse.Namespace, display: Display) -> ServedReranker:
    from npu_llm.cli.tasks.starting import start_task

    model = start_task("NPUModelForSequenceClassification", options, display)
    return ServedReranker(name, model, max_waiting=options.max_queue)


_LOADERS: Mapping[Kind, Callable[[str, argparse.Namespace, Display], Served]] = {
    "vectors": _load_encoder,
    "scores": _load_reranker,
    "transcripts": _load_speech,
}


def _names(
    paths: Sequence[str | None], aliases: Sequence[str], adapters: Sequence[str]
) -> list[str]:
    """Returns the API names of the models, followed by those of the adapters."""
    given = [DEFAULT_WEIGHTS if path is None else Path(path).name for path in paths]
    names = [*aliases, *given[len(aliases) :], *adapters]
    if len(aliases) > len(paths) or len(set(names)) < len(names):
        raise OptionError(
            f"`--alias` must give each model a unique name, got {', '.join(names)} for "
            f"{len(paths)} models. Repeat --alias in the order of the models.",
            code="model-alias",
        )
    return names

"""Registry of a server's models, which are loaded on their first request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar, cast

from npu_command.interpreter import freeze_objects
from npu_llm.errors import ModelError, ServerError
from npu_llm.gguf.task import find_gguf_task
from npu_llm.models.entry import MANIFEST
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.task_models import ServedEncoder, ServedReranker, ServedSpeech

__all__ = ["CLASSES", "Kind", "ModelRegistry", "Served", "kind_of"]

Served = ServedModel | ServedEncoder | ServedReranker | ServedSpeech
_Kind = TypeVar("_Kind", ServedModel, ServedEncoder, ServedReranker, ServedSpeech)

# Kinds of models by output: text, embeddings of texts, scores of pairs, transcripts of audio.
Kind = Literal["text", "vectors", "scores", "transcripts"]
CLASSES: dict[Kind, type[Served]] = {
    "text": ServedModel,
    "vectors": ServedEncoder,
    "scores": ServedReranker,
    "transcripts": ServedSpeech,
}
_ENDPOINTS: dict[type, str] = {
    ServedModel: "/v1/chat/completions, /v1/completions and /v1/responses",
    ServedEncoder: "/v1/embeddings and /rerank",
    ServedReranker: "/rerank and /score",
    ServedSpeech: "/v1/audio/transcriptions",
}
_LOOK_S = 1.0  # interval of the check for idle models


class ModelRegistry:
    """Models by name, each loaded at its first use.

    Attributes:
        names: names for requests; a request without a name uses the first model of the right kind.
        loaded: the models in memory.
        parents: names of adapters' base models, by adapter.
    """

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], Served]],
        *,
        kinds: Mapping[str, type[Served]] | None = None,
        parents: Mapping[str, str] | None = None,
        idle_s: float | None = None,
        max_loaded: int | None = None,
        sizes: Mapping[str, int] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Creates a registry without loaded models.

        Args:
            loaders: functions that load the models, by name.
            kinds: classes of the models, by name; ServedModel by default.
            parents: names of adapters' base models, by adapter.
            idle_s: seconds without a request after which a model is unloaded; None for never.
            max_loaded: maximum number of loaded models; the least recently used idle one is
                unloaded. None for no limit.
            sizes: sizes of models in bytes, by name.
            max_bytes: maximum total size of loaded models; a request that would exceed it while all
                others are busy is rejected. None for no limit.
        """
        self.names = list(loaders)
        self.loaded: dict[str, Served] = {}
        self._kinds = dict.fromkeys(loaders, ServedModel) | dict(kinds or {})
        self.parents = dict(parents or {})
        self._loaders = dict(loaders)
        self._sizes = dict(sizes or {})
        self._most_bytes = max_bytes
        self._idle_s = idle_s
        self._most_loaded = max_loaded
        self._uses = dict.fromkeys(loaders, 0)
        self._last_s = dict.fromkeys(loaders, 0.0)
        self._loading = asyncio.Lock()

    def check(self, name: str) -> str:
        """Returns the name of a model, without the tag that Ollama's clients may add.

        Raises:
            ModelError: [unknown-model] for an unknown name.
        """
        if name not in self._loaders:
            name = name.removesuffix(":latest")
        if name not in self._loaders:
            raise ModelError(
                f"`model` must be a model of the server: {', '.join(self.names)}, got "
                f"{name[:80]!r}. List them with GET /v1/models.",
                code="unknown-model",
            )
        return name

    def kind(self, name: str) -> Kind:
        """Returns the kind of a model."""
        return next(kind for kind, one in CLASSES.items() if one is self._kinds[name])

    def has(self, name: str | None, kind: type[Served]) -> bool:
        """Whether a model is of a kind; for None, whether any model is."""
        if name is None:
            return kind in self._kinds.values()
        return self._kinds[self.check(name)] is kind

    @asynccontextmanager
    async def use(self, name: str | None, kind: type[_Kind]) -> AsyncIterator[_Kind]:
        """Loads a model if necessary, and keeps it in memory within the block.

        Args:
            name: name of the model; None for the first of its kind.
            kind: required kind.

        Raises:
            ModelError: [unknown-model], [model-endpoint] for another kind, or an error of loading.
            ServerError: [server-memory] if busy models leave too little memory.
        """
        async with self._held(self._meant(name, kind)) as served:
            yield cast(_Kind, served)

    async def load(self, name: str) -> None:
        """Loads a model in advance."""
        async with self._held(self.check(name)):
            pass

    async def unload_idle(self) -> None:
        """Unloads idle models until it is cancelled."""
        while self._idle_s is not None:
            await asyncio.sleep(min(_LOOK_S, self._idle_s))
            async with self._loading:
                now = time.monotonic()
                for name in list(self.loaded):
                    if not self._uses[name] and now - self._last_s[name] >= self._idle_s:
                        await self._unload(name)

    async def close(self, *, grace_s: float) -> None:
        """Unloads all models; first waits for their answers, see Engine.close."""
        for name in list(self.loaded):
            served = self.loaded.pop(name)
            await asyncio.to_thread(served.close, grace_s=grace_s)

    @asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[Served]:
        self._uses[name] += 1
        try:
            yield await self._get(name)
        finally:
            self._uses[name] -= 1
            self._last_s[name] = time.monotonic()

    def _meant(self, name: str | None, kind: type) -> str:
        able = [one for one in self.names if self._kinds[one] is kind]
        if name is None and able:
            return able[0]
        if name is not None and (name := self.check(name)) in able:
            return name
        other = "no such model" if name is None else f"{name}, for {_ENDPOINTS[self._kinds[name]]}"
        raise ModelError(
            f"`model` must be a model for {_ENDPOINTS[kind]}, got {other}. Use one of: "
            f"{', '.join(able) or 'none'}.",
            code="model-endpoint",
        )

    async def _get(self, name: str) -> Served:
        if name not in self.loaded:
            async with self._loading:
                if name not in self.loaded:
                    await self._make_place(name)
                    self.loaded[name] = await asyncio.to_thread(self._loaders[name])
                    await asyncio.to_thread(freeze_objects)
        return self.loaded[name]

    async def _make_place(self, name: str) -> None:
        while (is_too_large := self._is_too_large(name)) or self._are_too_many():
            idle = [one for one in self.loaded if not self._uses[one]]
            if idle:
                await self._unload(min(idle, key=lambda one: self._last_s[one]))
            elif is_too_large:
                raise ServerError(
                    f"`server` must have memory for {name} besides the busy models, got "
                    f"{', '.join(self.loaded)}, which leave too little. Retry later.",
                    code="server-memory",
                )
            else:
                return  # one more is allowed while all of them are busy

    def _are_too_many(self) -> bool:
        return self._most_loaded is not None and len(self.loaded) >= self._most_loaded

    def _is_too_large(self, name: str) -> bool:
        if self._most_bytes is None:
            return False
        taken = sum(self._sizes.get(one, 0) for one in (*self.loaded, name))
        return taken > self._most_bytes

    async def _unload(self, name: str) -> None:
        served = self.loaded.pop(name)
        await asyncio.to_thread(served.close)
        del served
        await asyncio.to_thread(freeze_objects)


_TASKS: dict[str, Kind] = {
    "AutoModel": "vectors",
    "AutoModelForSequenceClassification": "scores",
    "AutoModelForSpeechSeq2Seq": "transcripts",
}
# Suffixes of transformers' classes for language models.
_WRITING = ("ForCausalLM", "LMHeadModel")


def kind_of(path: str | None) -> Kind:
    """Returns the kind of a checkpoint; "text" if it is unknown.

    transformers takes seconds to import, and is imported only if the config is not enough.

    Args:
        path: a checkpoint folder or file, an exported folder, or a name on the hub; None for the
            default weights.
    """
    if path is None:
        return "text"
    folder = Path(path).expanduser()
    if (folder / "modules.json").is_file() and not (folder / MANIFEST).is_file():
        return "vectors"  # written by sentence-transformers
    if _writes(folder):
        return "text"
    from npu_llm.tasks.auto_model import find_task

    try:
        return _TASKS.get(find_task(path), "text")
    except ModelError:
        return "text"  # loading it as a language model reports the reason


def _writes(folder: Path) -> bool:
    """Whether the metadata of a GGUF file or folder names a language model."""
    if folder.suffix == ".gguf":
        try:
            return find_gguf_task(folder) == "AutoModelForCausalLM"
        except (ModelError, OSError):
            return True  # loading reports the reason
    try:
        if (folder / MANIFEST).is_file():
            about = json.loads((folder / MANIFEST).read_text())["about"]
            return bool(about.get("task", "AutoModelForCausalLM") == "AutoModelForCausalLM")
        config = json.loads((folder / "config.json").read_text())
        (architecture,) = config["architectures"]
        return str(architecture).endswith(_WRITING)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False

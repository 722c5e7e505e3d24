"""The file of a saved session: one safetensors file, whole or not there at all.

Its metadata hold the messages, the model that the session was held with, and a digest of
everything; its tensors are the tokens that the cache had read and, for caches that can be copied,
keys and values.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from npu_command.whole_files import draft_of
from npu_llm.errors import SessionError

__all__ = ["ModelIdentity", "SavedSession", "read_session", "write_session"]

_FORMAT = "npu-llm session"
_VERSION = 1
_CACHE = "cache."  # prefix of the cache's tensors


@dataclass(frozen=True)
class ModelIdentity:
    """Which model a session was held with.

    Attributes:
        name: its name.
        precision: how its weights are stored and its arithmetic is done.
        config: digest of its configuration.
        cache: digest of which caches it can load. It may change when a model is rebuilt with
            another version, which makes saved keys and values useless.
    """

    name: str
    precision: str
    config: str
    cache: str

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Returns the identity of a loaded model."""
        saved = json.loads((model.entry.folder / "config.json").read_text())
        config = {
            key: value
            for key, value in saved.items()
            # A checkpoint's place and what wrote it do not make it another model.
            if key not in ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
        }
        text = json.dumps(config, sort_keys=True, default=str)
        return cls(
            name=model.name,
            precision=model.precision.name,
            config=hashlib.sha256(text.encode()).hexdigest()[:16],
            cache=hashlib.sha256(model.cache_kind.encode()).hexdigest()[:16],
        )


@dataclass(frozen=True)
class SavedSession:
    """What the file holds.

    Attributes:
        messages: the conversation, oldest first; values that JSON can hold.
        model: the model that it was held with.
        tokens: what the cache had read.
        cache: keys and values by name; empty for a cache that cannot be copied.
    """

    messages: Sequence[Mapping[str, Any]]
    model: ModelIdentity
    tokens: Sequence[int]
    cache: Mapping[str, torch.Tensor] = field(default_factory=dict)


def write_session(path: Path, saved: SavedSession) -> None:
    """Writes the file under a temporary name, and renames it when it is complete.

    Raises:
        SessionError: [session-unwritable] when the folder is missing, read-only or full, or when a
            message holds what JSON cannot.
    """
    tensors = {"tokens": torch.tensor(list(saved.tokens), dtype=torch.int64)}
    tensors |= {_CACHE + name: tensor.contiguous().cpu() for name, tensor in saved.cache.items()}
    try:
        about = json.dumps(
            {"messages": [dict(item) for item in saved.messages], "model": asdict(saved.model)}
        )
        metadata = {
            "format": _FORMAT,
            "version": str(_VERSION),
            "about": about,
            "digest": _digest(about, tensors),
        }
        with draft_of(path) as draft:
            save_file(tensors, draft, metadata)
            with draft.open("rb") as written:
                os.fsync(written.fileno())
    except (OSError, SafetensorError, TypeError, ValueError) as failure:
        raise SessionError(
            f"`{path}` must be in a writable folder with room for the session, whose messages must "
            f"be values that JSON can hold, got: {failure}. Save it elsewhere.",
            code="session-unwritable",
        ) from failure


def read_session(path: Path, model: ModelIdentity) -> SavedSession:
    """Reads the file of a session that was held with this model.

    Returns:
        What was saved; without its cache where the model cannot load that.

    Raises:
        SessionError: [session-unreadable] when it is missing, damaged, of another kind or of a
            later version, [session-model] when the session had another model or precision.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_kind(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(metadata["about"], tensors) != metadata["digest"]:
            raise ValueError("its digest differs")
        about = json.loads(metadata["about"])
        held = ModelIdentity(**about["model"])
        messages: list[dict[str, Any]] = about["messages"]
        tokens: list[int] = tensors["tokens"].tolist()
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as failure:
        raise _unreadable(path, f"{type(failure).__name__}: {failure}") from failure
    for what in ("name", "precision", "config"):
        if getattr(held, what) != getattr(model, what):
            raise SessionError(
                f"`{path}` must be restored with the model that the session was held with, "
                f"{held.name} in {held.precision}, got {model.name} in {model.precision}, which "
                f"differs by its {what}. Load that model, or start a new session.",
                code="session-model",
            )
    cache = {
        name.removeprefix(_CACHE): tensor
        for name, tensor in tensors.items()
        if name.startswith(_CACHE) and held.cache == model.cache
    }
    return SavedSession(messages=messages, model=held, tokens=tokens, cache=cache)


def _check_kind(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise _unreadable(path, "a file of another kind")
    if metadata.get("version") != str(_VERSION):
        raise _unreadable(path, f"format {metadata.get('version')}, where {_VERSION} is known")


def _unreadable(path: Path, received: str) -> SessionError:
    return SessionError(
        f"`{path}` must be a session that npu-llm saved, whole and of a format that this version "
        f"knows, got {received}. Restore another, or start a new session.",
        code="session-unreadable",
    )


def _digest(about: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns a digest of the metadata and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()

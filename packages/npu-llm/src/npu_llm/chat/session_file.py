"""Saved sessions: one safetensors file, written atomically.

Its metadata contain the messages, the session's model, and a digest of everything. Its tensors are
the tokens in the cache and, if the cache can be copied, keys and values.
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
    """The identity of a session's model.

    Attributes:
        name: the model's name.
        precision: storage of its weights and dtype of its arithmetic.
        config: digest of its configuration.
        cache: digest of the compatible caches. It may change when a model is rebuilt with another
            version, which invalidates saved keys and values.
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
            # The checkpoint's path and writing library do not matter.
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
    """The content of a session file.

    Attributes:
        messages: the conversation, oldest first; values that JSON supports.
        model: the model of the session.
        tokens: the tokens in the cache.
        cache: keys and values by name; empty for a cache that cannot be copied.
    """

    messages: Sequence[Mapping[str, Any]]
    model: ModelIdentity
    tokens: Sequence[int]
    cache: Mapping[str, torch.Tensor] = field(default_factory=dict)


def write_session(path: Path, saved: SavedSession) -> None:
    """Writes the file under a temporary name, and renames it once complete.

    Raises:
        SessionError: [session-unwritable] if the folder is missing, read-only or full, or if a
            message contains values that JSON does not support.
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
            f"`{path}` must be in a writable folder with room for the session, and its messages "
            f"must be values that JSON supports, got: {failure}. Save it elsewhere.",
            code="session-unwritable",
        ) from failure


def read_session(path: Path, model: ModelIdentity) -> SavedSession:
    """Reads a session file, which must belong to this model.

    Returns:
        The saved session; without its cache if the model cannot load that.

    Raises:
        SessionError: [session-unreadable] if the file is missing, damaged, not a session or of a
            later version, [session-model] if the session had another model or precision.
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
                f"`{path}` must be restored with the model of the session, {held.name} in "
                f"{held.precision}, got {model.name} in {model.precision}, which differs by its "
                f"{what}. Load that model, or start a new session.",
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
        raise _unreadable(path, "another kind of file")
    if metadata.get("version") != str(_VERSION):
        raise _unreadable(path, f"format {metadata.get('version')} instead of {_VERSION}")


def _unreadable(path: Path, received: str) -> SessionError:
    return SessionError(
        f"`{path}` must be a session that npu-llm saved, complete and in a format that this "
        f"version supports, got {received}. Restore another, or start a new session.",
        code="session-unreadable",
    )


def _digest(about: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns a digest of the metadata and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()

"""The compile cache: entries by key, and the computation of keys; does not import torch."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from npu_command.interrupt import removed_at_interrupt
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.errors import CacheError
from npu_llm.models.entry import CompiledForm, Entry, read_entry, write_manifest
from npu_llm.precision import Precision, compile_options
from npu_runtime.info import device_info

__all__ = [
    "CompileCache",
    "dependencies",
    "draft",
    "entry_key",
    "find_entry",
    "make_key",
    "refer",
    "surroundings",
]

_logger = logging.getLogger(__name__)
_SAME_AS = "same_as"  # key of the entry that this one refers to


def find_entry(
    source: ModelSource, precisions: Iterable[Precision], pipeline: PipelineName
) -> Entry | None:
    """Returns a model's entry in the compile cache of the settings; None if there is none.

    Args:
        source: the model's files.
        precisions: accepted precisions; the first one with an entry is used.
        pipeline: the entry's pipeline.
    """
    cache, here = CompileCache(read_settings().cache_dir), surroundings()
    keys = (entry_key(source, precision, pipeline, here) for precision in precisions)
    return next((entry for key in keys if (entry := cache.find(key)) is not None), None)


def surroundings() -> dict[str, Any]:
    """Returns the dependencies of a compiled form besides the program: device, driver, versions."""
    device = device_info()
    packages = (
        "npu-llm", "npu-compiler", "npu-ops", "npu-runtime", "openvino", "torch", "transformers",
    )  # fmt: skip
    return {
        "device": [device.device, device.full_name, device.driver_version],
        "versions": {package: metadata.version(package) for package in packages},
    }


def entry_key(
    source: ModelSource,
    precision: Precision,
    pipeline: PipelineName,
    here: Mapping[str, Any],
    adapted_modules: Sequence[str] = (),
    *,
    is_for_npus: bool = False,
    ignore_unexpected: bool = False,
    has_long_ropes: bool = False,
) -> str:
    """Returns the key of an entry in the compile cache."""
    parts = {**dependencies(source, precision, here), "pipeline": pipeline}
    if is_for_npus:
        parts["device_options"] = compile_options(precision, device="NPU")
    if has_long_ropes:
        parts["long_ropes"] = True
    if ignore_unexpected:
        parts["ignore_unexpected"] = True
    if adapted_modules:
        parts["adapted_modules"] = list(adapted_modules)
    return make_key(f"{source.name}-{precision.name}-{pipeline}", parts)


def dependencies(
    source: ModelSource, precision: Precision, here: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns all inputs of an entry's key."""
    return {
        "path": str(source.path.resolve()),
        "files": source.identity(),
        "precision": precision.name,
        "options": compile_options(precision),
        **here,
    }


class CompileCache:
    """A folder of cache entries."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def find(self, key: str) -> Entry | None:
        """Returns the entry for a key; None if there is none, or if it is damaged.

        A damaged entry is removed with a logged warning. An entry for a model that is not a kernel
        program refers to another entry; the result is that entry with the reason, see `refer`.
        """
        entry = self._read(key)
        if entry is None or _SAME_AS not in entry.about:
            return entry
        other = self._read(str(entry.about[_SAME_AS]))
        if other is None:
            shutil.rmtree(entry.folder, ignore_errors=True)
            return None
        own = {name: value for name, value in entry.about.items() if name != _SAME_AS}
        return Entry(other.folder, {**other.about, **own})

    def _read(self, key: str) -> Entry | None:
        folder = self._root / key
        if not folder.is_dir():
            return None
        try:
            entry = read_entry(folder)
        except ValueError as problem:
            _logger.warning("damaged compile cache entry %s (%s): rebuilding it", folder, problem)
            shutil.rmtree(folder, ignore_errors=True)
            return None
        _touch(folder)
        return entry

    def compiled_form(self, key: str) -> CompiledForm:
        """Returns the folder for a compiled form with its program stored elsewhere.

        Raises:
            CacheError: the errors of `create`.
        """
        folder = self._root / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise _unwritable(self._root, failure) from failure
        _touch(folder)
        return CompiledForm(folder)

    @contextmanager
    def create(self, key: str) -> Iterator[Path]:
        """Yields a folder to fill, which becomes the key's entry if the body succeeds.

        The body writes `about.json`, the later `Entry.about`.

        Raises:
            CacheError: [cache-full] if the disk is full, [cache-unwritable] if the folder cannot be
                created or filled for another reason.
        """
        _remove_abandoned(self._root, ".+")
        with draft(self._root / key) as folder:
            yield folder


@contextmanager
def draft(target: Path) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `target` if the body succeeds.

    The body writes `about.json`, the later `Entry.about`. If another process has completed `target`
    in the meantime, the draft is dropped.

    Raises:
        CacheError: [cache-full] or [cache-unwritable].
    """
    root = target.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root, re.escape(target.name))
        folder = root / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}"
        folder.mkdir()
    except OSError as failure:
        raise _unwritable(root, failure) from failure
    try:
        with removed_at_interrupt(folder):
            yield folder
            _commit(folder, target)
    except OSError as failure:
        raise _unwritable(root, failure) from failure
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refer(folder: Path, other: Entry, *, why_not_kernels: str) -> None:
    """Makes a draft refer to another entry of the same cache.

    Args:
        folder: the draft; its content is removed.
        other: the entry that has the program.
        why_not_kernels: reason that a requested kernel program was not possible;
            `Entry.why_not_kernels`.
    """
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    about = {_SAME_AS: other.folder.name, "why_not_kernels": why_not_kernels}
    (folder / "about.json").write_text(json.dumps(about))


def _commit(folder: Path, target: Path) -> None:
    write_manifest(folder)
    try:
        folder.rename(target)
    except OSError:
        # Another process was faster. Its entry is used if complete, otherwise ours.
        try:
            read_entry(target)
        except ValueError:
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)


def _remove_abandoned(root: Path, name: str) -> None:
    """Removes drafts with a target name that matches a pattern, if their writer has died."""
    pattern = re.compile(rf"\.{name}\.(\d+)\.[0-9a-f]{{8}}")
    for folder in root.glob(".*"):
        match = pattern.fullmatch(folder.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def make_key(name: str, parts: Mapping[str, Any]) -> str:
    """Returns the key of an entry: a readable name, and a digest of its dependencies."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    readable = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    return f"{readable[:60]}-{digest.hexdigest()[:16]}"


def _touch(folder: Path) -> None:
    """Sets the folder's time to its last use, which `npu-llm cache` shows."""
    with contextlib.suppress(OSError):  # another user's cache may be read-only
        os.utime(folder)


def _unwritable(root: Path, failure: OSError) -> CacheError:
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheError(
            f"`{root}` must have room for the model, got: {failure.strerror}. Its files were "
            "removed. Free space, or name another folder with NPU_LLM_CACHE_DIR or --cache-dir.",
            code="cache-full",
        )
    return CacheError(
        f"`{root}` must be a writable folder, got: {failure.strerror or failure}. Name "
        "another with NPU_LLM_CACHE_DIR or --cache-dir.",
        code="cache-unwritable",
    )

"""The compiled form of an exported model, kept for the next load; known without torch.

It lies beside the programs of compiled graphs (npu_compiler.programs.cache), under a key of its
own, so that `npu-compiler cache` lists and bounds it with them. The model itself stays where it was
exported, which may be read-only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.programs.blob_files import AMENDMENTS, check_blobs, read_amendments, record_blobs
from npu_compiler.programs.device_options import compile_tolerant

__all__ = ["KeptModel"]

_logger = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")

_FORMAT = 1
_PART_BYTES = 1 << 26
_THREADS = 2


class KeptModel:
    """The place of one model's compiled form; nowhere, where nothing can be kept."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Finds the place of a model.

        Args:
            path: of the IR's xml file; the key has all bytes of both its files.
            facts: what else the compiled form depends on, JSON-like: device, driver, options.
        """
        self._entry: Path | None = None
        self._name = path.parent.name
        settings = read_settings()
        if settings.cache_size_bytes == 0:
            return
        text = json.dumps(
            {
                "format": _FORMAT,
                "files": [_digest(path), _digest(path.with_suffix(".bin"))],
                "openvino": version("openvino"),
                "npu-compiler": version("npu-compiler"),
                **facts,
            },
            sort_keys=True,
        )
        key = hashlib.sha256(text.encode()).hexdigest()[:40]
        entry = settings.cache_dir / "programs" / key
        try:
            entry.mkdir(parents=True, exist_ok=True)
            # What the cache of programs lists and removes is known by this file.
            write_json(
                entry / "entry.json",
                {"format": "exported", "created": time.time(), "model": str(path.parent)},
            )
        except OSError as failure:
            _logger.warning("npu_compiler.load: cannot keep the compiled model (%s)", failure)
            return
        self._entry = entry

    def load(
        self,
        compile_model: Callable[[dict[str, str], Path | None], _Loaded],
        options: Mapping[str, str],
        *,
        device: str,
        from_cache: Callable[[_Loaded], bool],
    ) -> _Loaded:
        """Returns the compiled model.

        Args:
            compile_model: called with options and the directory of the blob, or None; a second
                time without the CPU plugin's generator of kernels, if that fails on the model.
            options: of the device's compiler.
            device: OpenVINO's name of the device, or SIM.
            from_cache: whether the device compiled nothing.
        """
        entry = self._entry
        if entry is None:
            loaded, _ = compile_tolerant(
                lambda given: compile_model(given, None), options, name=self._name, device=device
            )
            return loaded
        blobs = entry / "blob"
        check_blobs(blobs)
        loaded, amendments = compile_tolerant(
            lambda given: compile_model(given, blobs),
            {**options, **read_amendments(entry)},
            name=self._name,
            device=device,
        )
        if amendments:
            try:
                write_json(entry / AMENDMENTS, amendments)
            except OSError as failure:
                _logger.warning("npu_compiler.load: cannot keep options in %s (%s)", entry, failure)
        if not from_cache(loaded):
            record_blobs(blobs)
        return loaded


def _digest(path: Path) -> str:
    """A hash of all bytes of a file, at the speed of memory."""
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        view = memoryview(content)

        def part(start: int) -> bytes:
            return hashlib.sha256(view[start : start + _PART_BYTES]).digest()

        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            parts = [*pool.map(part, range(0, size, _PART_BYTES))]
        view.release()
    return hashlib.sha256(b"".join(parts)).hexdigest()

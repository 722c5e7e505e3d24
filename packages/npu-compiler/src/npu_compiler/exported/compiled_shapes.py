"""Compiled programs of an exported model, cached on disk and by input shapes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

from npu_command.whole_files import write_json, write_text
from npu_compiler.config import read_settings
from npu_compiler.exported.manifest import Manifest
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.blobs import AMENDMENTS, check_blobs, read_amendments, record_blobs
from npu_compiler.programs.device_options import compile_tolerant
from npu_compiler.programs.fixed_shapes import with_shapes

__all__ = ["ByShapes", "KeptModel", "Shapes", "has_one_shape", "with_fixed_shapes"]

# Entries share the directory of compiled graphs' programs (npu_compiler.programs.cache) under
# separate keys, so that `npu-compiler cache` lists and bounds both. The model itself stays in its
# exported folder, which may be read-only.

_logger = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")

_FORMAT = 1
_PART_BYTES = 1 << 26
_THREADS = 2


class KeptModel:
    """The cache entry of one compiled model; without a folder if the cache cannot be written."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Finds the entry of an IR by the bytes of both its files and further JSON-like facts."""
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
            # The program cache recognizes its entries by this file.
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
            compile_model: called with options and the directory of the blob, or None; if the CPU
                plugin's kernel generator fails on the model, called again without it.
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
    """Returns a hash of all bytes of a file, at memory speed."""
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


# There is one program if the device supports dynamic sizes, or the model has none.

Shapes = tuple[tuple[int, ...], ...]

# Each holds a copy of the weights in the device's format.
_KEPT = 8


def has_one_shape(device: str) -> bool:
    """Whether a device's programs are static; see docs/reference/npu-driver-rules.md."""
    return device.startswith("NPU")


class ByShapes(Generic[_Loaded]):
    """The programs of a model by input shapes; thread-safe."""

    def __init__(
        self,
        load: Callable[[Shapes | None], _Loaded],
        manifest: Manifest,
        is_from_cache: Callable[[_Loaded], bool],
        *,
        one_shape: bool,
    ) -> None:
        """Loads the program if a single one serves all calls.

        `load` receives the shape of each input of the IR, or None for the exported sizes. With
        `one_shape` each program of the device has a single shape.
        """
        used = [port for port in manifest.inputs if port.port is not None]
        self._varies = any(not isinstance(size, int) for port in used for size in port.shape)
        self._varies = self._varies and one_shape
        self._load, self._is_from_cache = load, is_from_cache
        self._loaded: OrderedDict[Shapes | None, _Loaded] = OrderedDict()
        self._lock = threading.Lock()
        self.from_cache = True
        if not self._varies:
            self.get(())

    def get(self, shapes: Sequence[tuple[int, ...]]) -> _Loaded:
        """Returns the program for a call with inputs of these shapes."""
        key = tuple(shapes) if self._varies else None
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = loaded = self._load(key)
                self.from_cache = self.from_cache and self._is_from_cache(loaded)
            self._loaded.move_to_end(key)
            while len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
            return self._loaded[key]


@contextlib.contextmanager
def with_fixed_shapes(path: Path, shapes: Shapes | None, place: Path | None) -> Iterator[Path]:
    """Yields the path of a model, with shapes fixed if given.

    The changed model is stored in `place`, or in a temporary folder.
    """
    if shapes is None:
        yield path
        return
    with contextlib.ExitStack() as stack:
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="npu-compiler-")))
        fixed = place / path.name
        weights, link = path.with_suffix(".bin"), fixed.with_suffix(".bin")
        if weights.exists() and not link.exists():
            link.unlink(missing_ok=True)  # of an identical folder that was removed
            with contextlib.suppress(FileExistsError):  # another process is linking the same file
                link.symlink_to(weights.absolute())
        if not fixed.is_file():
            inputs = openvino_core().read_model(str(path)).inputs
            names = [port.get_node().get_friendly_name() for port in inputs]
            text = with_shapes(path.read_text(), dict(zip(names, shapes, strict=True)))
            write_text(fixed, text)
        yield fixed

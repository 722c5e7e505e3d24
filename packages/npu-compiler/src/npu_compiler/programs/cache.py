"""Programs on disk, so that a second process neither lowers nor compiles.

An entry is a directory `<key>` with the IR (model.xml, model.bin), the device's compiled blob and
entry.json with sizes and checksums. It appears by one rename, so that a reader sees all of it or
nothing. What the key is made of is the caller's knowledge; content_key adds versions and device.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npu_runtime
from npu_command.errors import KindError
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.programs.blob_files import AMENDMENTS, check_blobs, read_amendments, record_blobs
from npu_compiler.programs.device_options import compile_tolerant
from npu_compiler.programs.fingerprint import fingerprint
from npu_compiler.programs.load import device_name, load_tolerant, needed_options, write_model
from npu_runtime import observe
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["CacheEntry", "CacheStatistics", "ProgramCache", "content_key"]

_logger = logging.getLogger(__name__)

_FORMAT = 2
_STALE_S = 3600.0
_VERDICT = "verdict.json"
_MODEL = "model.xml"
_ENTRY = "entry.json"


@dataclass(frozen=True)
class CacheStatistics:
    """What a cache did since it was made: entries found, built, and rebuilt because damaged."""

    hits: int = 0
    misses: int = 0
    rebuilt: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class CacheEntry:
    """A program that is kept.

    Attributes:
        key: the name of its folder.
        name: what it was called when it was made.
        size_bytes: of its files.
        used: when it was last used, in seconds since 1970.
    """

    key: str
    name: str
    size_bytes: int
    used: float


@public_call
def content_key(parts: Mapping[str, Any], *, device: str | None = None) -> str:
    """Returns the key of a program: a hash of what the caller names and of what always counts.

    Args:
        parts: JSON-like description of the model, its weights' identity, its dtype and options.
        device: OpenVINO's name of the device; by default the one that serves.
    """
    import torch  # late: a vendor's compiler is asked in processes without it

    serving = npu_runtime.device_info()
    facts = {
        "parts": parts,
        "format": _FORMAT,
        "torch": torch.__version__,
        "openvino": version("openvino"),
        "npu-compiler": version("npu-compiler"),
        "code": _own_code(),
        "device": device or serving.device,
        "hardware": serving.full_name,
        "driver": serving.driver_version,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@functools.cache
def _own_code() -> str:
    """A hash of this package's sources: what lowers a graph may change without a new version."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class ProgramCache:
    """Programs in a directory, bounded in size; many threads and processes may share it."""

    @public_call
    def __init__(
        self, cache_dir: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None
    ) -> None:
        """Names the directory; it is made when the first program is stored.

        Args:
            cache_dir: default from the settings (NPU_COMPILE_CACHE_DIR), in it `programs`.
            max_bytes: the entries that were not used for longest go when the sum is above this.
        """
        settings = read_settings()
        self.directory = Path(cache_dir or settings.cache_dir) / "programs"
        self.max_bytes = settings.cache_size_bytes if max_bytes is None else max_bytes
        self._statistics = CacheStatistics()
        self._lock = threading.Lock()

    @property
    def statistics(self) -> CacheStatistics:
        """What this object did so far."""
        return self._statistics

    @public_call
    def load(
        self,
        key: str,
        build: Callable[[], ov.Model],
        *,
        name: str,
        options: Mapping[str, str],
        device_index: int | None = None,
        profiling: bool = False,
    ) -> npu_runtime.Program:
        """Returns the program of a key, from the cache, or built and stored.

        Args:
            key: from content_key; options belong into its parts.
            build: makes the model when the cache does not have it. Tensors behind its constants
                must live until this returns.
            name: shown in traces and errors.
            options: from compile_options.
            device_index: index of the npu device; the current one by default.
            profiling: whether the device records times per layer.

        Returns:
            The program; `program.loaded_from_cache` says whether the device compiled nothing.

        Raises:
            KindError: [argument-kind] build returned something else than a model.
        """
        program, _ = self.load_with_facts(
            key,
            lambda: (build(), {}),
            name=name,
            options=options,
            device_index=device_index,
            profiling=profiling,
        )
        return program

    @public_call
    def load_with_facts(
        self,
        key: str,
        build: Callable[[], tuple[ov.Model, dict[str, Any]]],
        *,
        name: str,
        model: str = "",
        options: Mapping[str, str],
        device_index: int | None = None,
        profiling: bool = False,
    ) -> tuple[npu_runtime.Program, dict[str, Any]]:
        """Returns the program of a key and what its builder said about it.

        Args:
            key: as for load.
            build: makes the model, and JSON-like facts that are kept beside it.
            name: as for load.
            model: what a listing of the cache says before the name.
            options: as for load.
            device_index: as for load.
            profiling: as for load.

        Raises:
            KindError: [argument-kind] build returned something else than a model and facts.
        """
        entry = self.directory / key

        def from_entry() -> npu_runtime.Program:
            return self._load_entry(entry, name, options, device_index, profiling)

        damage = _damage(entry)
        if damage is None:
            self._count(hits=1)
            return from_entry(), _facts(entry)
        if entry.exists():
            _logger.warning("program cache: entry %s is damaged (%s); rebuilding it", key, damage)
            shutil.rmtree(entry, ignore_errors=True)
            self._count(rebuilt=1)
        self._count(misses=1)
        with observe.span("compile", "build", program=name):
            built, facts = _checked(build())
        amendments = needed_options(built, device_index)
        try:
            title = f"{model}, {name}" if model else name
            write = functools.partial(_write_model, built)
            self._store(entry, write, facts, amendments, title)
        except OSError as failure:
            _logger.warning(
                "program cache: cannot store %s in %s (%s); running without it",
                key,
                self.directory,
                failure,
            )
            program = load_tolerant(
                built, name=name, options=options, device_index=device_index, profiling=profiling
            )
            return program, facts
        program = from_entry()
        self._evict(keep=key)
        return program, facts

    @public_call
    def find(
        self, key: str, *, name: str, options: Mapping[str, str]
    ) -> npu_runtime.Program | None:
        """Returns the program of a key if it is kept whole, and nothing otherwise.

        Args:
            key: as for load.
            name: as for load.
            options: as for load.
        """
        entry = self.directory / key
        if _damage(entry) is not None:
            return None
        self._count(hits=1)
        return self._load_entry(entry, name, options, None, False)

    @public_call
    def find_files(self, key: str) -> tuple[Path, dict[str, Any]] | None:
        """Returns the directory that store_files wrote, with its facts, if it is whole.

        Args:
            key: as for load.
        """
        entry = self.directory / key
        if _damage(entry, needs=None) is not None:
            return None
        self._count(hits=1)
        _touch(entry)
        return entry, _facts(entry)

    @public_call
    def store_files(
        self, key: str, write: Callable[[Path], None], *, name: str, facts: dict[str, Any]
    ) -> None:
        """Keeps files under a key; a directory that cannot be written costs a log line.

        Args:
            key: as for load.
            write: writes them into a directory.
            name: what a listing calls them.
            facts: JSON-like, kept beside them.
        """
        entry = self.directory / key
        if _damage(entry, needs=None) is None:
            return
        shutil.rmtree(entry, ignore_errors=True)
        try:
            self._store(entry, write, facts, {}, name)
        except OSError as failure:
            _logger.warning(
                "program cache: cannot store %s in %s (%s)", key, self.directory, failure
            )
            return
        self._evict(keep=key)

    @public_call
    def verdict(self, key: str) -> dict[str, Any] | None:
        """Returns what was recorded about the results of a key's program, or None.

        Args:
            key: as for load.
        """
        try:
            content = json.loads((self.directory / key / _VERDICT).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as failure:
            _logger.warning("program cache: the verdict on %s is damaged (%s)", key, failure)
            return None
        return content if isinstance(content, dict) else None

    @public_call
    def record_verdict(
        self, key: str, verdict: Mapping[str, Any], *, amendments: Mapping[str, str]
    ) -> None:
        """Keeps what was found out about the results of a key's program.

        Args:
            key: as for load.
            verdict: JSON-like.
            amendments: options with which the program is compiled from now on.
        """
        entry = self.directory / key
        try:
            if amendments:
                write_json(entry / AMENDMENTS, {**read_amendments(entry), **amendments})
            write_json(entry / _VERDICT, verdict)
        except OSError as failure:
            # Another process may have removed the entry: the next one judges again.
            _logger.debug("program cache: cannot keep the verdict on %s (%s)", key, failure)

    @public_call
    def load_amended(
        self, key: str, *, name: str, options: Mapping[str, str], amendments: Mapping[str, str]
    ) -> npu_runtime.Program:
        """Returns the program of a key that is kept, compiled with further options.

        Args:
            key: as for load.
            name: as for load.
            options: as for load.
            amendments: the further ones.
        """
        entry = self.directory / key
        # OpenVINO takes a blob for its own whatever SNIPPETS_MODE it was compiled with.
        shutil.rmtree(entry / "blob", ignore_errors=True)
        return self._load_entry(entry, name, {**options, **amendments}, None, False)

    def _load_entry(
        self,
        entry: Path,
        name: str,
        options: Mapping[str, str],
        device_index: int | None,
        profiling: bool,
    ) -> npu_runtime.Program:
        blobs = entry / "blob"
        check_blobs(blobs)
        settings = {"CACHE_MODE": "OPTIMIZE_SIZE", **options, **read_amendments(entry)}

        def load(settings: Mapping[str, str]) -> npu_runtime.Program:
            return npu_runtime.load_program(
                entry / _MODEL,
                name=name,
                options=dict(settings),
                device_index=device_index,
                cache_dir=blobs,
                profiling=profiling,
            )

        device = device_name(device_index)
        program, amendments = compile_tolerant(load, settings, name=name, device=device)
        if amendments:
            write_json(entry / AMENDMENTS, amendments)
        if not program.loaded_from_cache:
            record_blobs(blobs)
        _touch(entry)
        return program

    def _store(
        self,
        entry: Path,
        write: Callable[[Path], None],
        facts: dict[str, Any],
        amendments: dict[str, str],
        name: str,
    ) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        with observe.span("compile", "store", key=entry.name):
            place = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=self.directory))
            try:
                write(place)
                files = {path.name: fingerprint(path) for path in sorted(place.iterdir())}
                record = {
                    "format": _FORMAT,
                    "name": name,
                    "created": time.time(),
                    "files": files,
                    "facts": facts,
                }
                if amendments:
                    write_json(place / AMENDMENTS, amendments)
                write_json(place / _ENTRY, record)
                try:
                    place.rename(entry)
                except OSError:
                    # Another process was faster: its entry is as good as ours.
                    if not entry.exists():
                        raise
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what writers left behind that were killed."""
        for path in self.directory.glob(".*"):
            try:
                is_old = time.time() - path.stat().st_mtime > _STALE_S
            except OSError:
                continue
            if is_old:
                shutil.rmtree(path, ignore_errors=True)

    def entries(self) -> tuple[CacheEntry, ...]:
        """Returns the programs that are kept."""
        return tuple(
            CacheEntry(path.name, _kept_name(path), size_bytes, used)
            for path, size_bytes, used in self._kept()
        )

    def _kept(self) -> Iterator[tuple[Path, int, float]]:
        """Yields the folder of each program, the size of its files, and when it was last used."""
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if path.name.startswith(".") or not path.is_dir():
                continue
            try:
                size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
                used = (path / _ENTRY).stat().st_mtime
            except OSError:
                continue  # another process removes it, or writes it
            yield path, size, used

    def clear(self) -> None:
        """Removes all programs; those that run keep what they have mapped."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _evict(self, *, keep: str) -> None:
        kept = list(self._kept())
        total = sum(size_bytes for _, size_bytes, _ in kept)
        for path, size_bytes, _ in sorted(kept, key=lambda one: one[2]):
            if total <= self.max_bytes:
                return
            if path.name != keep:
                shutil.rmtree(path, ignore_errors=True)
                total -= size_bytes
                self._count(evicted=1)

    def _count(self, **more: int) -> None:
        with self._lock:
            now = self._statistics
            sums = {name: getattr(now, name) + count for name, count in more.items()}
            self._statistics = replace(now, **sums)


def _kept_name(path: Path) -> str:
    """What a program was called when it was made."""
    try:
        return str(json.loads((path / _ENTRY).read_text()).get("name", "unnamed"))
    except (OSError, ValueError, AttributeError):
        return "damaged"


def _write_model(model: ov.Model, place: Path) -> None:
    try:
        write_model(model, place / _MODEL)
    except RuntimeError as failure:
        # OpenVINO reports a full disk so.
        raise OSError(str(failure).strip()) from failure


def _checked(built: Any) -> tuple[ov.Model, dict[str, Any]]:
    """What a builder returned, if it is a model with facts."""
    import openvino as ov

    match built:
        case (ov.Model() as model, dict() as facts):
            return model, facts
    raise KindError(
        "npu_compiler.programs.ProgramCache: build must return an openvino.Model, that of "
        f"load_with_facts one with a dict of facts; got {type(built).__name__}. Return these.",
        code="argument-kind",
    )


def _facts(entry: Path) -> dict[str, Any]:
    facts = json.loads((entry / _ENTRY).read_text())["facts"]
    return dict(facts)


def _damage(entry: Path, *, needs: str | None = _MODEL) -> str | None:
    """Why an entry cannot be used; None when it can, and has the file that is needed."""
    try:
        record = json.loads((entry / _ENTRY).read_text())
        expected = record["files"]
        is_complete = isinstance(record.get("facts"), dict) and needs in (None, *expected)
        if record["format"] != _FORMAT or not is_complete:
            return "another format"
        for file_name, written in expected.items():
            if fingerprint(entry / file_name) != written:
                return f"{file_name} is not what was written"
    except FileNotFoundError as missing:
        return f"{Path(str(missing.filename)).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as failure:
        return f"entry.json cannot be read: {failure}"
    return None


def _touch(entry: Path) -> None:
    try:
        os.utime(entry / _ENTRY)
    except OSError as failure:
        _logger.debug("program cache: cannot touch %s (%s)", entry, failure)

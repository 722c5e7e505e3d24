"""The cache of programs on disk: compiled OpenVINO programs and kernel programs."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import npu_runtime
from npu_command.errors import KindError
from npu_command.whole_files import write_json
from npu_compiler.passes.registered import registered_code
from npu_compiler.programs.blobs import AMENDMENTS, check_blobs, read_amendments, record_blobs
from npu_compiler.programs.device_options import compile_tolerant
from npu_compiler.programs.execution import KernelForm
from npu_compiler.programs.kept_files import FORMAT, KeptFiles, damage_of, facts_of, touch
from npu_compiler.programs.load import device_name, load_tolerant, needed_options, write_model
from npu_ops.errors import DamagedFileError
from npu_ops.kernel_programs.weights import PackedLinear, read_weights, write_weights
from npu_runtime import observe
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["ProgramCache", "content_key", "find_kernels", "kernel_options", "store_kernels"]

# An entry has the IR (model.xml, model.bin) and the device's compiled blob. The caller supplies the
# parts of the key; content_key adds versions and device.

_logger = logging.getLogger(__name__)

_VERDICT = "verdict.json"
_MODEL = "model.xml"


@public_call
def content_key(parts: Mapping[str, Any], *, device: str | None = None) -> str:
    """Returns the key of a program: a hash of the caller's parts, versions and device.

    Args:
        parts: JSON-like description of the model, its weights' identity, its dtype and options.
        device: OpenVINO's name of the device; by default the current one.
    """
    serving = npu_runtime.device_info()
    facts = {
        "parts": parts,
        "format": FORMAT,
        "torch": torch.__version__,
        "openvino": version("openvino"),
        "npu-compiler": version("npu-compiler"),
        "code": _own_code() + registered_code(),
        "device": device or serving.device,
        "hardware": serving.full_name,
        "driver": serving.driver_version,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@functools.cache
def _own_code() -> str:
    """Returns a hash of this package's sources, which may change without a new version."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class ProgramCache(KeptFiles):
    """The device's programs in the cache."""

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
        """Returns the program of a key from the cache, or builds and stores it.

        Args:
            key: from content_key; its parts must include the options.
            build: builds the model if it is not in the cache. Tensors behind its constants must
                live until this returns.
            name: shown in traces and errors.
            options: from compile_options.
            device_index: index of the npu device; the current one by default.
            profiling: whether the device records times per layer.

        Returns:
            The program; `program.loaded_from_cache` is true if the device compiled nothing.

        Raises:
            KindError: [argument-kind] build did not return a model.
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
        """Returns the program of a key and the facts that its builder returned.

        Args:
            key: as for load.
            build: builds the model, and JSON-like facts that are stored with it.
            name: as for load.
            model: the model's name, which cache listings show before the name.
            options: as for load.
            device_index: as for load.
            profiling: as for load.

        Raises:
            KindError: [argument-kind] build did not return a model and facts.
        """
        entry = self.directory / key

        def from_entry() -> npu_runtime.Program:
            return self._load_entry(entry, name, options, device_index, profiling)

        damage = damage_of(entry, needs=_MODEL)
        if damage is None:
            self._count(hits=1)
            return from_entry(), facts_of(entry)
        if entry.exists():
            _logger.warning("program cache: entry %s is damaged (%s); rebuilding it", key, damage)
            shutil.rmtree(entry, ignore_errors=True)
            self._count(rebuilt=1)
        self._count(misses=1)
        with observe.span("compile", "build", program=name):
            built, facts = _checked(build())
        amendments = needed_options(built, device_index, options)
        try:
            title = f"{model}, {name}" if model else name
            write = functools.partial(_write_model, built)
            changing = {AMENDMENTS: amendments} if amendments else {}
            with observe.span("compile", "store", key=key):
                self._store(entry, write, facts, title, changing)
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
        """Returns the program of a key, or None if it is missing or damaged.

        Args:
            key: as for load.
            name: as for load.
            options: as for load.
        """
        entry = self.directory / key
        if damage_of(entry, needs=_MODEL) is not None:
            return None
        self._count(hits=1)
        return self._load_entry(entry, name, options, None, False)

    @public_call
    def verdict(self, key: str) -> dict[str, Any] | None:
        """Returns the recorded verdict on a key's program, or None.

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
        """Records the verdict on a key's program.

        Args:
            key: as for load.
            verdict: JSON-like.
            amendments: extra options for all later compilations of the program.
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
        """Returns the cached program of a key, compiled with further options.

        Args:
            key: as for load.
            name: as for load.
            options: as for load.
            amendments: the further ones.
        """
        entry = self.directory / key
        # OpenVINO accepts a blob whatever SNIPPETS_MODE it was compiled with.
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
        touch(entry)
        return program


def _write_model(model: ov.Model, place: Path) -> None:
    try:
        write_model(model, place / _MODEL)
    except RuntimeError as failure:
        # OpenVINO's error for a full disk.
        raise OSError(str(failure).strip()) from failure


def _checked(built: Any) -> tuple[ov.Model, dict[str, Any]]:
    """Returns a builder's result if it is a model with facts."""
    import openvino as ov

    match built:
        case (ov.Model() as model, dict() as facts):
            return model, facts
    raise KindError(
        "npu_compiler.programs.ProgramCache: `build` must return an openvino.Model, for "
        f"load_with_facts with a dict of facts, got {type(built).__name__}. Return these.",
        code="argument-kind",
    )


_WEIGHTS = "weights.safetensors"


def kernel_options(home: str) -> dict[str, str]:
    """Returns the key's part for the options of the device's compiler."""
    return {"target": "kernels", "home": home, "npu-ops": version("npu-ops")}


def store_kernels(
    cache: ProgramCache,
    key: str,
    form: KernelForm,
    weights: Mapping[str, PackedLinear | torch.Tensor],
    *,
    name: str,
) -> None:
    """Stores a kernel program; logs a warning if the directory cannot be written."""

    def write(place: Path) -> None:
        write_weights(place / _WEIGHTS, weights.items(), count=len(weights))

    cache.store_files(key, write, name=name, facts={"kernels": form.as_json()})


def find_kernels(
    cache: ProgramCache, key: str
) -> tuple[KernelForm, Mapping[str, PackedLinear | torch.Tensor]] | None:
    """Returns a key's kernel program with its weights, or None if missing or damaged."""
    found = cache.find_files(key)
    if found is None:
        return None
    place, facts = found
    try:
        return KernelForm.from_json(facts["kernels"]), read_weights(place / _WEIGHTS)
    except (OSError, DamagedFileError, KeyError, TypeError, ValueError) as failure:
        _logger.warning("program cache: kernel program %s cannot be used (%s)", key, failure)
        shutil.rmtree(place, ignore_errors=True)  # so that it is rebuilt
        return None

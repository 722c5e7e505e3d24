"""Programs of one step in requested sizes, each compiled once and stored on disk.

All are the same model with different input sizes. The sizes are written into a copy of the model's
text, and the weights' file is linked next to it, so that it is stored and mapped once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import npu_runtime
from npu_compiler.programs.blobs import AheadBlobs, check_blobs, record_blobs
from npu_compiler.programs.fixed_shapes import with_shapes
from npu_compiler.verification.result import Verdict
from npu_llm.errors import CacheError
from npu_llm.kv_cache.static_layout import StaticLayout, StepSizes
from npu_llm.kv_cache.step_weights import HOST_MODEL, StepWeights
from npu_llm.models.program_form import ProgramForm
from npu_llm.verification.verifier import Load
from npu_runtime import Program

__all__ = [
    "LoadVariant",
    "StaticPrograms",
    "VerifyVariant",
    "fixed_path",
    "load_variant",
    "rewriting",
    "write_variant",
]

# Loads the model at a path, with its compiled form in a folder. Further compiler options are those
# of its form, then those that work around a wrong result.
LoadVariant = Callable[[Path, Path, Mapping[str, str], Mapping[str, str]], Program]
# Returns the loader of a program of some sizes, and its folder: loads it, compared with torch.
VerifyVariant = Callable[[StepSizes, Load, Path], tuple[Program, Verdict]]

# Each keeps its own weights in the device's format: two for the current capacity, for one token and
# for many, and two more while the cache grows.
_KEPT = 4
# Verdicts from good to bad, except for wrong programs, which are never used.
_WORSE = ("right", "mended", "unsteady", "unchecked")
# OpenVINO looks up a compiled form by the program's path and time. A variant's folder identifies
# its content, so it has the same time everywhere; a copied folder is still found.
_TIME_NS = 10**18


class StaticPrograms:
    """The programs of a model's static pipeline; threads may share them.

    Attributes:
        layout: their ports.
    """

    def __init__(
        self,
        model: Path,
        layout: StaticLayout,
        folder: Path,
        load: LoadVariant,
        *,
        verify: VerifyVariant | None = None,
        spare: Path | None = None,
        weights: StepWeights | None = None,
        form: ProgramForm | None = None,
    ) -> None:
        """Stores the model's parts.

        Args:
            model: the .xml file with its .bin next to it, from npu_llm.models.lower_step.
            layout: its ports, from the same module.
            folder: folder of the variants.
            load: loads a variant as a program.
            verify: loads a program and compares it; None to skip comparisons.
            spare: folder of variants if `folder` lacks them and is read-only; None if it is
                writable.
            weights: weights as inputs of the programs; None if they are constants.
            form: form of the programs, with options of the device's compiler.
        """
        self._form = form or ProgramForm()
        self.layout = layout
        self._weights = weights or StepWeights()
        self._given: dict[StepSizes, StepWeights] = {}
        self._model = model
        self._folder = folder
        self._spare = spare
        self._load = load
        self._verify = verify or _unverified
        self._verdicts: dict[StepSizes, Verdict] = {}
        self._programs: OrderedDict[StepSizes, Program] = OrderedDict()
        self._lock = threading.Lock()
        self.compiled = 0  # number of programs that were not on disk

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on the programs loaded so far."""
        return max(self._verdicts.values(), key=lambda verdict: _WORSE.index(verdict.status))

    def get(self, sizes: StepSizes) -> Program:
        """Returns the program for these sizes.

        Raises:
            npu_compiler.errors.WrongResultError: [wrong-result] if its results differ from torch's.
            npu_runtime.ProgramError: if the device rejects it.
            CacheError: [cache-unwritable] if it cannot be written.
        """
        with self._lock:
            program = self._programs.get(sizes)
            if program is None:
                folder = self._place(str(sizes))
                path = write_variant(
                    self._model,
                    folder,
                    self.layout.port_shapes(sizes),
                    rewriting(self.layout, sizes, self._form),
                )
                wanted = self._form.options(sizes.tokens)
                load = functools.partial(self._load, path, folder / "blob", wanted)
                program, self._verdicts[sizes] = self._verify(sizes, load, folder)
                self.compiled += not program.loaded_from_cache
                self._given[sizes] = self._weights.of_program(folder)
                self._programs[sizes] = program
            self._programs.move_to_end(sizes)
            while len(self._programs) > _KEPT:
                self._programs.popitem(last=False)
            return program

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Returns the inputs of the program for these sizes besides tokens, masks and caches."""
        return self._given[sizes]

    def _place(self, name: str) -> Path:
        """Returns the folder of a variant."""
        folder = self._folder / name
        return folder if self._spare is None or folder.is_dir() else self._spare / name


def load_variant(
    name: str, options: Mapping[str, str], ahead: AheadBlobs | None = None
) -> LoadVariant:
    """Returns a loader of variants on the device in use.

    Args:
        name: name in traces and errors.
        options: options for the device's compiler.
        ahead: variants compiled ahead of time, by folder name; None for none.
    """

    def import_blob(blob: Path) -> Program:
        return npu_runtime.load_program(blob, name=name, options=options)

    def load(
        model: Path, blobs: Path, wanted: Mapping[str, str], amendments: Mapping[str, str]
    ) -> Program:
        compile_here = functools.partial(compile_variant, model, blobs, {**wanted, **amendments})
        if ahead is None or amendments:  # a blob was compiled without the workaround
            return compile_here()
        return ahead.load(model.parent.name, model, import_blob, compile_here)

    def compile_variant(model: Path, blobs: Path, further: Mapping[str, str]) -> Program:
        check_blobs(blobs)
        # The compiled form excludes the weights, which stay mapped from the model's own file.
        settings = {**options, **further, "CACHE_MODE": "OPTIMIZE_SIZE"}
        with suppress(OSError):  # another user's folder may be read-only; then a copy is recompiled
            os.utime(model, ns=(_TIME_NS, _TIME_NS))
        with fixed_path(model.parent) as folder:
            program = npu_runtime.load_program(
                folder / model.name, name=name, options=settings, cache_dir=blobs
            )
        if not program.loaded_from_cache:
            record_blobs(blobs)
        return program

    return load


def write_variant(
    model: Path,
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    rewrite: Callable[[Any], Any] | None = None,
) -> Path:
    """Writes a model with fixed sizes, unless it exists.

    Args:
        model: the .xml file with its .bin next to it.
        folder: output folder.
        shapes: the shape of each input.
        rewrite: modifies the openvino.Model (its weights are then written again), and returns the
            part that the host runs; see `rewriting`.

    Returns:
        Its .xml file in `folder`, with the weights next to it.

    Raises:
        CacheError: [cache-unwritable].
    """
    path = folder / "step.xml"
    if path.is_file():
        return path
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        draft.mkdir(parents=True)
        (draft / path.name).write_text(with_shapes(model.read_text(), shapes))
        _link(model.with_suffix(".bin"), draft / "step.bin", folder)
        if rewrite is not None:
            _rewrite(draft / path.name, rewrite)
        with suppress(OSError):  # another thread or process was faster; its files are identical
            draft.rename(folder)
    except OSError as failure:
        raise CacheError(
            f"`{folder}` must be a writable folder, got: {failure.strerror or failure}. "
            "Name another with NPU_LLM_CACHE_DIR or --cache-dir.",
            code="cache-unwritable",
        ) from failure
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def rewriting(
    layout: StaticLayout, sizes: StepSizes, form: ProgramForm
) -> Callable[[Any], Any] | None:
    """Returns the function that rewrites a program for its sizes; None if it stays unchanged."""
    if not layout.is_specialized:
        return None
    from npu_llm.models.specialize import (
        specialize,  # imported late: loading from the cache needs no OpenVINO
    )

    caches = [port for group in layout.groups for port in group.ports]
    return functools.partial(specialize, sizes=sizes, caches=caches, form=form)


def _rewrite(path: Path, rewrite: Callable[[Any], Any]) -> None:
    import openvino as ov

    from npu_compiler.openvino_core import openvino_core

    model = openvino_core().read_model(path)
    host = rewrite(model)
    if host is not None:
        ov.save_model(host, path.with_name(HOST_MODEL), compress_to_fp16=False)
    written = path.with_name("rewritten.xml")
    ov.save_model(model, written, compress_to_fp16=False)
    del model, host  # they map the file that is replaced
    for suffix in (".xml", ".bin"):
        written.with_suffix(suffix).replace(path.with_suffix(suffix))


def _unverified(_: StepSizes, load: Load, __: Path) -> tuple[Program, Verdict]:
    return load({}), Verdict("unchecked", "there is no reference for the comparison")


def _link(source: Path, target: Path, place: Path) -> None:
    """Links a file without copying it; the link survives moving both."""
    target.symlink_to(os.path.relpath(source, place))


# A file descriptor that is valid in every process (soft limits are 1,024 and more), far above those
# that the system assigns, lowest first.
_NUMBER = 937
_lock = threading.Lock()


@contextmanager
def fixed_path(folder: Path) -> Iterator[Path]:
    """Yields a path to the folder that is the same for all folders.

    One body runs at a time. If the process already uses that path's file descriptor, or its limit
    is lower, the folder's own path is yielded, and a moved folder is recompiled.

    Args:
        folder: an existing folder.
    """
    with _lock:
        if _is_taken(_NUMBER):
            yield folder
            return
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.dup2(opened, _NUMBER, inheritable=False)
        except OSError:
            yield folder
            return
        finally:
            os.close(opened)
        try:
            yield Path(f"/proc/self/fd/{_NUMBER}")
        finally:
            with contextlib.suppress(OSError):
                os.close(_NUMBER)


def _is_taken(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True

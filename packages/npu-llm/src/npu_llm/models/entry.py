"""A compile-cache entry: a folder with a ready-to-load model, in the compile cache or exported.

An entry is written under a temporary name and renamed once complete, so a killed writer never
leaves a partial entry (npu_llm.models.compile_cache).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npu_command.whole_files import write_text
from npu_compiler.programs.blobs import AMENDMENTS, BLOB_FOLDER, AheadBlob, read_blob_records
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.choices import KvCache
from npu_llm.errors import ModelError, OptionError
from npu_llm.kv_cache.static_layout import LONGEST, StaticLayout, StaticSizes
from npu_llm.precision import PRECISIONS, Precision, cache_dtype_name
from npu_llm.verification.kept_verdict import VERDICT
from npu_ops.kernel_programs.sparse_attention import SparseAttention

if TYPE_CHECKING:
    from npu_llm.kv_cache.cache import Relocation

__all__ = [
    "KERNEL_PROGRAM",
    "MANIFEST",
    "ORIGINS",
    "REFERENCE",
    "STEP_WEIGHTS",
    "VARIANTS",
    "CompiledForm",
    "Entry",
    "free_folder",
    "is_exported",
    "open_exported",
    "read_entry",
    "write_manifest",
]

_logger = logging.getLogger(__name__)
MANIFEST = "entry.json"
ORIGINS = "origins.json"  # the calls' source modules and lines
REFERENCE = "reference.safetensors"  # torch's results for a few tokens
KERNEL_PROGRAM = "step.json"
# The packed weights for the kernels, or the weights that static programs take as inputs.
STEP_WEIGHTS = "step.safetensors"
_BLOBS = "blob"
# Programs of fixed sizes, checked by npu_llm.models.static_programs.
VARIANTS = "variants"
_BLOB_MANIFEST = "blob.json"
_FORMAT = 1
# Hashing gigabytes at each load would take longer than the load. A large file is unchanged if its
# size and modification time are, as in git.
_ALWAYS_HASHED_BYTES = 4 << 20
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class CompiledForm:
    """The output of the device's compiler for a program; validated before each use.

    Attributes:
        folder: contains the folder of the files, and a record of them.
        spare: fallback for programs if `folder` is read-only.
    """

    folder: Path
    spare: Path | None = None

    @property
    def blobs(self) -> Path:
        """The folder of the device compiler's files."""
        return self.folder / _BLOBS

    def is_sound(self) -> bool:
        """Whether there are files, exactly as `record` recorded them."""
        try:
            records = json.loads((self.folder / _BLOB_MANIFEST).read_text())
            names = {str(file.relative_to(self.blobs)) for file in _files(self.blobs)}
            return names == set(records) and _first_difference(self.blobs, records) is None
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def clear_unless_sound(self) -> None:
        """Removes the files if they are not as recorded."""
        if not self.is_sound():
            shutil.rmtree(self.blobs, ignore_errors=True)

    def record(self) -> None:
        """Records the files after a load has written them."""
        if self.blobs.is_dir():
            write_text(self.folder / _BLOB_MANIFEST, json.dumps(_records(self.blobs)))


@dataclass(frozen=True)
class Entry:
    """A complete entry.

    Attributes:
        folder: the entry's folder.
        about: the record of its writer.
        max_context: the user's limit on prompt and answer tokens; None for the model's limit.
        kv_cache: the requested storage type of keys and values; None for the default.
        sparse_attention: the requested selection of keys for tokens of a long sequence; None for
            all.
        trusts_code: whether to run code from the model, such as a tokenizer's.
    """

    folder: Path
    about: Mapping[str, Any]
    max_context: int | None = None
    kv_cache: KvCache | None = None
    sparse_attention: SparseAttention | None = None
    trusts_code: bool = False

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.about["name"])

    @property
    def precision(self) -> Precision:
        """The precision of its weights and arithmetic."""
        return PRECISIONS[str(self.about["precision"])]

    @property
    def relocation(self) -> Relocation:
        """The program's way to identify the valid slots of its cache."""
        found = self.about.get("relocation")
        return found if found in ("positions", "mask") else None

    @property
    def states(self) -> Mapping[str, Sequence[int]]:
        """Names and sizes per row of the recurrent states."""
        found: Mapping[str, Sequence[int]] = self.about.get("states") or {}
        return found

    @property
    def adapted(self) -> Mapping[str, Sequence[int]]:
        """Inputs and outputs of the layers that adapters may change, by module path."""
        found: Mapping[str, Sequence[int]] = self.about.get("adapted") or {}
        return found

    @property
    def blobs(self) -> tuple[AheadBlob, ...]:
        """Its programs compiled ahead of time for NPUs.

        Raises:
            TypeError: if the records are invalid.
        """
        return read_blob_records(self.about.get("blobs", ()))

    @property
    def static_layout(self) -> StaticLayout | None:
        """The memory layout of the static pipeline's cache; None for the dynamic pipeline."""
        known = self.about.get("static")
        return None if known is None else StaticLayout.from_dict(known)

    @property
    def static_sizes(self) -> StaticSizes:
        """The sizes of the static pipeline's programs."""
        layout = self.static_layout
        assert layout is not None, "static entries have a layout"
        limit = (self.context_length or LONGEST) if layout.groups else None
        if layout.starts_empty:
            # Together with a step's one token, a multiple of the sizes that an NPU computes at
            # once.
            return StaticSizes(limit, chunks=(1, 16, 128, 256), smallest=271)
        return StaticSizes(limit, most_tokens=layout.most_tokens)

    @property
    def weights_digest(self) -> str:
        """The digest of the program's weights when the entry was written."""
        files = json.loads((self.folder / MANIFEST).read_text())["files"]
        name = STEP_WEIGHTS if STEP_WEIGHTS in files else self.model_path.with_suffix(".bin").name
        return str(files[name]["sha256"])

    @property
    def pipeline(self) -> Literal["dynamic", "static", "kernels"]:
        """The entry's pipeline."""
        recorded = self.about.get("pipeline")
        if recorded == "kernels":
            return "kernels"
        is_static = recorded == "static" or self.static_layout is not None
        return "static" if is_static else "dynamic"

    @property
    def vocabulary(self) -> int | None:
        """The vocabulary size; None in entries of earlier versions."""
        return self.about.get("vocabulary")

    @property
    def has_fast_tokenizer(self) -> bool:
        """Whether the saved files suffice for npu_llm.tokenizer.tokenizer.Tokenizer."""
        return bool(self.about.get("has_fast_tokenizer"))

    @property
    def how_weights_run(self) -> str | None:
        """Description of how quantized weights run; see ModelFacts.how_weights_run."""
        facts = self.facts
        # The device determines the dtype of float arithmetic only.
        computed_in = "" if facts.quantization is not None else cache_dtype_name(self.precision)
        said = facts.how_weights_run(self.precision, self.pipeline, computed_in)
        repacked: Mapping[str, tuple[str, float]] = self.about.get("repacked") or {}
        parts = [
            f"{kind} repacked as {other}, {f'off by {loss:.1%}' if loss else 'exactly'}"
            for kind, (other, loss) in sorted(repacked.items())
        ]
        return said if said is None or not parts else f"{said}; {', '.join(parts)}"

    @property
    def facts(self) -> ModelFacts:
        """The facts from the headers of the model's files when the entry was written."""
        return ModelFacts(**self.about["facts"])

    @property
    def why_not_kernels(self) -> str | None:
        """The reason that a requested kernel program was not possible; None otherwise."""
        reason = self.about.get("why_not_kernels")
        return None if reason is None else str(reason)

    @property
    def model_path(self) -> Path:
        """The path of the program's IR."""
        return self.folder / "step.xml"

    @property
    def weights_path(self) -> Path:
        """The path of weights outside the program; the file is absent if there are none."""
        return self.folder / STEP_WEIGHTS

    @property
    def reference_path(self) -> Path:
        """The path of torch's results for a few tokens, which older entries lack."""
        return self.folder / REFERENCE

    @property
    def origins(self) -> dict[str, tuple[str, str]]:
        """Module and Python line of the program's calls, by call name."""
        try:
            known = json.loads((self.folder / ORIGINS).read_text())
        except FileNotFoundError:  # an entry from before such files
            return {}
        return {name: (module, line) for name, (module, line) in known.items()}

    @property
    def compiled(self) -> CompiledForm:
        """The compiled form next to the program; one for each storage and selection of keys."""
        folder, chosen = self.folder, self.sparse_attention
        if self.kv_cache is not None:
            folder /= f"kv-{self.kv_cache}"
        if chosen is not None:
            folder /= f"sparse-{chosen.top_k}-{chosen.dense_up_to}"
        return CompiledForm(folder)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model has a tokenizer."""
        return bool(self.about["has_tokenizer"])

    @property
    def model_context(self) -> int | None:
        """The model's context in tokens; None if it sets no limit."""
        length = self.about["context_length"]
        return None if length is None else int(length)

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of prompt and answer; None without a limit."""
        return self.model_context if self.max_context is None else self.max_context


def read_entry(folder: Path) -> Entry:
    """Reads an entry and compares its files with the manifest.

    Raises:
        ValueError: if it is incomplete; the message contains the difference.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"{MANIFEST}: format {content['format']}")
        problem = _first_difference(folder, content["files"])
        about = content["about"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise ValueError(f"{MANIFEST}: {failure}") from failure
    if problem is not None:
        raise ValueError(problem)
    return Entry(folder, about)


def write_manifest(folder: Path) -> None:
    """Completes a draft: records its files, and the writer's data in about.json."""
    about_file = folder / "about.json"
    about = json.loads(about_file.read_text())
    about_file.unlink()
    records = {
        name: record
        for name, record in _records(folder).items()
        if Path(name).name not in (_BLOB_MANIFEST, VERDICT, AMENDMENTS)
        and not name.startswith((f"{_BLOBS}/", f"{VARIANTS}/", f"{BLOB_FOLDER}/"))
    }
    content = {"format": _FORMAT, "about": about, "files": records}
    write_text(folder / MANIFEST, json.dumps(content, indent=1))


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    return {str(file.relative_to(folder)): _record(file) for file in _files(folder)}


def _record(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _digest(file)}


def _files(folder: Path) -> Iterable[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _first_difference(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns the first difference between a folder and its records; None if there is none."""
    for name, record in records.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        stat = file.stat()
        if stat.st_size != record["bytes"]:
            return f"{name} has {stat.st_size} bytes instead of {record['bytes']}"
        touched = stat.st_mtime_ns != record["mtime_ns"]
        suspect = touched or stat.st_size <= _ALWAYS_HASHED_BYTES
        if suspect and _digest(file) != record["sha256"]:
            return f"{name} has different contents"
        if touched:
            # A copied file: with its time restored it is not read again, and the compiled form is
            # valid.
            with contextlib.suppress(OSError):
                os.utime(file, ns=(stat.st_atime_ns, record["mtime_ns"]))
    return None


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# Required keys of an exported folder's manifest.
_ABOUT = {"name", "precision", "context_length", "has_tokenizer", "facts", "made_with"}


def free_folder(output: str | os.PathLike[str]) -> Path:
    """Returns the output folder as an absolute path; an empty folder there is removed.

    Raises:
        OptionError: [output-exists] for a file, or a folder that is not empty.
    """
    target = Path(output).expanduser().absolute()
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    elif target.exists():
        raise OptionError(
            f"`{target}` must be empty or not exist, got a file, or a folder that is not empty. "
            "Remove it, or choose another path.",
            code="output-exists",
        )
    return target


def is_exported(path: Path) -> bool:
    """Whether a path is a folder written by `export`."""
    return (path / MANIFEST).is_file()


def open_exported(folder: Path) -> Entry:
    """Reads an exported folder and checks that it is complete.

    Raises:
        ModelError: [exported-damaged] if it differs from its manifest, [cache-entry] for an entry
            of the compile cache.
    """
    try:
        entry = read_entry(folder.absolute())
        missing = sorted(_ABOUT - set(entry.about))
        if "made_with" in missing and "source" in entry.about:
            raise ModelError(
                f"`{folder}` must be a model's own files or a folder from npu_llm.export, got an "
                f"entry of the compile cache. Pass {entry.about['source']}, its source.",
                code="cache-entry",
            )
        if missing:
            raise ValueError(f"{MANIFEST} lacks {missing[0]}")
        _ = entry.blobs  # raises for other records
    except (ValueError, TypeError) as problem:
        raise ModelError(
            f"`{folder}` must be unchanged since npu_llm.export wrote it, got: {problem}. Copy it "
            "again, or export the model again.",
            code="exported-damaged",
        ) from problem
    return entry

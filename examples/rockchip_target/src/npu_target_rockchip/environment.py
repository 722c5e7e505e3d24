"""Environments of rknn-toolkit2, one for each release: made, found and removed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from npu_command.interrupt import removed_at_interrupt
from npu_command.whole_files import locked, write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.targets import check_release

__all__ = ["LATEST", "RELEASES", "find_python", "install", "remove", "state"]

# The toolkit asks for torch up to 2.4 and for OpenCV with windows; a model in ONNX needs neither.
_BESIDE = (
    "protobuf<=4.25.4", "numpy<=1.26.4", "onnx==1.17.0", "onnxruntime<1.20", "scipy<1.14",
    "setuptools<80", "opencv-python-headless==4.10.0.84", "psutil", "ruamel.yaml", "tqdm",
    "fast-histogram", "torch==2.13.*",
)  # fmt: skip
RELEASES = {"2.5.0": _BESIDE}
LATEST = max(RELEASES)
_NEWEST_PYTHON = (3, 12)
_RECORD = "installed.json"


def home() -> Path:
    """Returns the folder of the environments."""
    return read_settings().cache_dir / "target" / "rockchip"


def install(release: str | None, *, wheel: Path | None, shows_progress: bool) -> dict[str, Any]:
    """Makes the environment of a release; one that is there already is replaced at the end.

    Raises:
        TargetError: [target-release] the release is not known; [target-python] no toolkit serves
            this Python; [target-download] pip cannot fetch it; [target-compiler] it does not start;
            [target-cache] the folder cannot be written.
    """
    chosen = release or LATEST
    check_release(chosen, RELEASES)
    if sys.version_info[:2] > _NEWEST_PYTHON or sys.platform != "linux":
        raise TargetError(
            f"rockchip: rknn-toolkit2 {chosen} must run on Linux with Python up to "
            f"{'.'.join(map(str, _NEWEST_PYTHON))}, got {sys.platform}, {sys.version.split()[0]}. "
            "Use such a Python.",
            code="target-python",
        )
    folder = home() / chosen
    try:
        home().mkdir(parents=True, exist_ok=True)
        with (
            locked(home()),
            tempfile.TemporaryDirectory(dir=home(), prefix=".") as place,
            removed_at_interrupt(Path(place)),
        ):
            draft = Path(place) / "environment"
            _make(draft, chosen, wheel, shows_progress=shows_progress)
            write_json(draft / _RECORD, {"release": chosen})
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    except OSError as failure:
        raise TargetError(
            f"target: {str(home())!r} must be a folder that can be written, with 2 GB of room, got "
            f"{failure.strerror}. Make room, or set NPU_COMPILE_CACHE_DIR.",
            code="target-cache",
        ) from failure
    return {"release": chosen, "library": str(folder), "version": f"rknn-toolkit2 {chosen}"}


def _make(draft: Path, release: str, wheel: Path | None, *, shows_progress: bool) -> None:
    python = draft / "bin" / "python"
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--only-binary=:all:",
    ]
    toolkit = str(wheel or f"rknn-toolkit2=={release}")
    shown = sys.stderr.fileno() if shows_progress else subprocess.DEVNULL
    for command in (
        [sys.executable, "-m", "venv", str(draft)],
        [*pip, "--no-deps", toolkit],
        [*pip, *RELEASES[release]],
    ):
        done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise TargetError(
                f"rockchip: pip must fetch {toolkit} and its requirements, 1.6 GB installed, got: "
                f"{said} Run it where PyPI can be reached, or pass --wheel with the toolkit's "
                "wheel.",
                code="target-download",
            )
    tried = subprocess.run(
        [str(python), "-c", "import rknn.api"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        raise broken(draft, said)


def broken(environment: Path, said: str) -> TargetError:
    """Returns the error of an environment whose toolkit does not start."""
    return TargetError(
        f"rockchip: the toolkit in {str(environment)!r} must start, got: {said.rstrip('.')}. Run "
        "`npu-compiler target install rockchip` again.",
        code="target-compiler",
    )


def find_python() -> tuple[Path, str]:
    """Returns the interpreter of the newest installed release, and that release.

    Raises [target-absent] without one, [target-compiler] for one that lacks files.
    """
    for folder, release in _installed():
        if release not in RELEASES:
            continue
        if problem := _problem(folder):
            raise broken(folder, problem)
        return folder / "bin/python", release
    have = ", ".join(release for _, release in _installed()) or "none"
    raise TargetError(
        f"target: rknn-toolkit2 {' or '.join(RELEASES)} must be installed; found {have}. Run "
        "`npu-compiler target install rockchip`.",
        code="target-absent",
    )


def remove(release: str) -> None:
    """Removes an environment; [target-absent] if it is not there."""
    found = {name: folder for folder, name in _installed()}
    if release not in found:
        raise TargetError(
            f"`release` must be an installed one ({', '.join(found) or 'none'}), got {release!r}. "
            "`npu-compiler target list` shows them.",
            code="target-absent",
        )
    with locked(home()):
        removed = home() / f".{release}"
        found[release].rename(removed)
        shutil.rmtree(removed)


def state() -> dict[str, Any]:
    """Returns the environments that are there, as `npu-compiler target list` shows them."""
    sources = [
        {
            "kind": "environment",
            "release": release,
            "library": str(folder),
            "version": "" if _problem(folder) else f"rknn-toolkit2 {release}",
            "problem": _problem(folder),
        }
        for folder, release in _installed()
    ]
    missing = [] if sources else [
        {"what": "a toolkit", "command": "npu-compiler target install rockchip"}
    ]  # fmt: skip
    return {"sources": sources, "releases": [*RELEASES], "missing": missing}


def _problem(folder: Path) -> str:
    """Returns what an environment lacks, or "": a look at files, since a start takes seconds."""
    lacking = [
        each for each in ("bin/python", "lib/*/site-packages/rknn") if not any(folder.glob(each))
    ]
    return f"it has no {lacking[0]}" if lacking else ""


def _installed() -> list[tuple[Path, str]]:
    found = []
    for record in sorted(home().glob(f"[0-9]*/{_RECORD}"), reverse=True):
        try:
            found.append((record.parent, str(json.loads(record.read_text())["release"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found

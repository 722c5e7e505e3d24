"""Fetches Intel's NPU compiler: the libraries for Windows in OpenVINO's wheel on PyPI."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from npu_command.whole_files import locked
from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.sources import CompilerSource, find_source, installed_folder

__all__ = ["LATEST", "RELEASES", "install"]

# SHA-256 of the wheels for CPython 3.11 on PyPI; 2026.0.0 is the first that carries the compiler.
RELEASES = {
    "2026.0.0": "eee912bf4370a4f454c9bcf2cfe31eda85ba6f324c85137d225edffcbc50c456",
    "2026.1.0": "b11217af27490f55e45a471bbfb4fcfb34358eaf70a512e09473e02a1842ee05",
    "2026.2.0": "851ca919200dc08d7898876f3947f4ea8ff8f04e9e8c1a31b87a8285c38eabcc",
    "2026.2.1": "a3c775db07981aa1d995f0fe587a4bc5384dcbda9c1fecdfad9bb6f20f340782",
    "2026.3.0": "7b688e38cc129cc268253c17d29a70d57e6e3ef8fb477a211294d1506440da15",
    "2026.3.1": "3e778e8b68645bab69258d95fd91ca65024d35bdf374eaf2bbf70b4169336873",
    "2026.4.0": "f00130dee4046272fc734afd88b9cbc69066f37219337828e04f1a1b257b2288",
    "2026.4.1": "bfddae6d6d3ad240157b946f180c33d0ddfaaae7487995d929a4e6b4bc12b283",
}
LATEST = max(RELEASES)

_LIBRARIES = (
    "openvino_intel_npu_compiler.dll",
    "openvino_intel_npu_compiler_loader.dll",
    "openvino_intel_npu_vm_runtime.dll",
    "tbb12.dll",
)
_INSIDE = "openvino/libs/"


def install(release: str = LATEST, *, wheel: Path | None = None) -> CompilerSource:
    """Fetches one release with pip, checks its hash and keeps its compiler.

    Args:
        release: of OpenVINO.
        wheel: the wheel for Windows, if it was fetched otherwise.

    Returns:
        The source; its `version()` starts it for the first time.

    Raises:
        TargetError: [target-release] the release is not known; [target-download] pip cannot fetch
            the wheel; [target-hash] the wheel is not the published one; [target-compiler] it holds
            no compiler.
    """
    if release not in RELEASES:
        raise TargetError(
            f"release: must be one of {', '.join(RELEASES)}; got {release!r}. Choose one of these.",
            code="target-release",
        )
    folder = installed_folder() / release
    with locked(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as place:
        fetched = wheel if wheel is not None else _fetch(release, Path(place))
        _check(fetched, release)
        draft = Path(place) / "libraries"
        draft.mkdir()
        _unpack(fetched, draft, release)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    return find_source(release)


def _fetch(release: str, place: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--platform", "win_amd64", "--python-version", "3.11", "--only-binary=:all:",
        "--dest", str(place), f"openvino=={release}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TargetError(
            f"openvino=={release}: pip must fetch the wheel for Windows; got: {said} Fetch it with "
            "`pip download --no-deps --platform win_amd64 --python-version 3.11 "
            f"--only-binary=:all: openvino=={release}` where there is a network, and pass --wheel "
            "with its path.",
            code="target-download",
        )
    return wheels[0]


def _check(wheel: Path, release: str) -> None:
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as failure:
        raise TargetError(
            f"wheel: must be a file that can be read; got {str(wheel)!r}: {failure.strerror}. "
            "Correct the path.",
            code="target-download",
        ) from failure
    if found != RELEASES[release]:
        raise TargetError(
            f"{wheel.name}: its SHA-256 must be {RELEASES[release]}, which PyPI publishes for "
            f"openvino {release} (cp311, win_amd64); got {found}. Nothing was installed. Fetch it "
            "again, from PyPI.",
            code="target-hash",
        )


def _unpack(wheel: Path, folder: Path, release: str) -> None:
    with zipfile.ZipFile(wheel) as content:
        present = set(content.namelist())
        for name in _LIBRARIES:
            if _INSIDE + name in present:
                with content.open(_INSIDE + name) as source, (folder / name).open("wb") as file:
                    shutil.copyfileobj(source, file)
    if not (folder / _LIBRARIES[0]).is_file():
        raise TargetError(
            f"{wheel.name}: must hold {_LIBRARIES[0]}; release {release} lacks it. Choose another.",
            code="target-compiler",
        )

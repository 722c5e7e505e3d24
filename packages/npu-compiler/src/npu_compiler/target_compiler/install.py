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
from npu_compiler.target_compiler.sources import (
    CompilerSource,
    installed_folder,
    installed_source,
    wine_command,
)
from npu_compiler.target_compiler.targets import check_release

__all__ = ["LATEST", "RELEASES", "install", "remove"]

# SHA-256 of the wheels for CPython 3.11 on PyPI; 2026.0.0 is the first with the compiler.
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


def install(
    release: str = LATEST, *, wheel: Path | None = None, shows_progress: bool = False
) -> CompilerSource:
    """Fetches one release with pip, checks its hash and keeps its compiler.

    An installed release is replaced.

    Args:
        release: OpenVINO's release.
        wheel: path of a downloaded wheel for Windows, instead of a download.
        shows_progress: whether pip shows its progress on standard error.

    Returns:
        The source; its `version()` starts it for the first time.

    Raises:
        TargetError: [target-release] for an unknown release; [target-wine] if Wine is missing;
            [target-download] if pip cannot fetch the wheel; [target-hash] if the wheel is not the
            published one; [target-compiler] if it has no compiler; [target-cache] if the folder
            cannot be written.
    """
    check_release(release, RELEASES)
    wine_command()
    home = installed_folder()
    try:
        with locked(home):
            home.mkdir(exist_ok=True)
            for left in home.glob(".*"):  # left by a killed installation
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=home, prefix=".") as place:
                fetched = wheel or _fetch(release, Path(place), shows_progress=shows_progress)
                _check(fetched, release)
                draft = Path(place) / "libraries"
                draft.mkdir()
                _unpack(fetched, draft, release)
                folder = home / release
                if folder.exists():
                    shutil.rmtree(folder)
                draft.rename(folder)
    except OSError as failure:
        raise _unwritable(home, failure) from failure
    source = installed_source(folder)
    assert source is not None, "the libraries were just unpacked"
    return source


def remove(release: str) -> None:
    """Removes an installed release.

    Raises:
        TargetError: [target-absent] if it is not installed; [target-cache] if the folder cannot be
            written.
    """
    home = installed_folder()
    try:
        with locked(home):
            found = {one.name: one for one in home.glob("[0-9]*") if installed_source(one)}
            if release not in found:
                raise TargetError(
                    f"`release` must be an installed one ({', '.join(sorted(found)) or 'none'}), "
                    f"got {release!r}. `npu-compiler target list` shows them.",
                    code="target-absent",
                )
            removed = home / f".{release}"  # not a source, if this is interrupted
            found[release].rename(removed)
            shutil.rmtree(removed)
    except OSError as failure:
        raise _unwritable(home, failure) from failure


def _unwritable(home: Path, failure: OSError) -> TargetError:
    return TargetError(
        f"target: {str(home)!r} must be a folder that can be written, with 1 GB of room, got "
        f"{failure.strerror}. Make room, or set NPU_COMPILE_CACHE_DIR.",
        code="target-cache",
    )


def _fetch(release: str, place: Path, *, shows_progress: bool) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
        "--platform", "win_amd64", "--python-version", "3.11", "--only-binary=:all:",
        "--dest", str(place), f"openvino=={release}",
    ]  # fmt: skip
    shown = sys.stderr.fileno() if shows_progress else subprocess.DEVNULL
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TargetError(
            f"openvino=={release}: pip must fetch the wheel for Windows, got: {said} Fetch it with "
            "`pip download --no-deps --platform win_amd64 --python-version 3.11 "
            f"--only-binary=:all: openvino=={release}` on a machine that reaches PyPI, and pass "
            "--wheel with its path.",
            code="target-download",
        )
    return wheels[0]


def _check(wheel: Path, release: str) -> None:
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as failure:
        raise TargetError(
            f"`wheel` must be a file that can be read, got {str(wheel)!r}: {failure.strerror}. "
            "Correct the path.",
            code="target-download",
        ) from failure
    if found != RELEASES[release]:
        raise TargetError(
            f"{wheel.name}: its SHA-256 must be {RELEASES[release]}, which PyPI publishes for "
            f"openvino {release} (cp311, win_amd64), got {found}. Nothing was installed. Fetch it "
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
            f"`{wheel.name}` must hold {_LIBRARIES[0]}; release {release} lacks it. Use another.",
            code="target-compiler",
        )

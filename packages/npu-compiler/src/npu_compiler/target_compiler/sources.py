"""Sources of Intel's NPU compiler: a Linux library of this system, or Windows' through Wine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_command.whole_files import locked, write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.vcl_process import CompilerProcess

__all__ = [
    "CompilerSource",
    "find_source",
    "installed_folder",
    "installed_source",
    "list_sources",
    "wine_command",
]

_HERE = Path(__file__).parent
_CLIENT = _HERE / "vcl_client.exe"
_LIBRARIES = (
    "libnpu_driver_compiler.so",
    "libopenvino_intel_npu_compiler_loader.so",
    "libopenvino_intel_npu_compiler.so",
)
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/lib", "/usr/lib64")
_WINE = ("/usr/lib/wine/wine64", "wine64", "wine")
_DLLS = ("openvino_intel_npu_compiler_loader.dll", "openvino_intel_npu_compiler.dll")
# .NET, a browser and a desktop are not needed.
_WINE_ENVIRONMENT = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml,winemenubuilder="}


@dataclass(frozen=True)
class CompilerSource:
    """One version of the compiler that this system can run."""

    # "setting" for a library given by the user, "driver" or "openvino" for one of this system,
    # "wine" for one of `npu-compiler target install`.
    kind: str
    library: Path  # the compiler, a .so or .dll
    release: str = ""  # release of its OpenVINO wheel; "" for another source

    @property
    def is_windows(self) -> bool:
        """Whether it needs Wine."""
        return self.library.suffix.lower() == ".dll"

    def start(self) -> CompilerProcess:
        """Starts the compiler in a process; [target-compiler] or [target-wine] if that fails."""
        if not self.is_windows:
            command = [sys.executable, "-I", str(_HERE / "vcl_client.py")]
            return CompilerProcess(command, str(self.library), {}, windows_paths=False)
        prefix = _home() / "wine"
        folder = _as_windows(self.library.parent)
        environment = {**_WINE_ENVIRONMENT, "WINEPREFIX": str(prefix), "WINEPATH": folder}
        command = [wine_command(), str(_CLIENT)]
        with locked(prefix):  # two first starts would create its folder concurrently
            is_first = not prefix.exists()
            try:
                return CompilerProcess(
                    command, _as_windows(self.library), environment, windows_paths=True
                )
            except BaseException:  # Ctrl-C, too
                if is_first:
                    shutil.rmtree(prefix, ignore_errors=True)
                raise

    def version(self) -> str:
        """Returns the compiler's version; see `identity`."""
        return self.identity()[0]

    def identity(self) -> tuple[str, str]:
        """Returns the compiler's version and its model format, such as "8.4"; raises as `start`.

        Both are cached, since a start takes a second.
        """
        stat = self.library.stat()
        key = f"{self.library}:{stat.st_size}:{stat.st_mtime_ns}"
        file = _home() / "identities.json"
        known = _read_identities(file)
        if key not in known:
            process = self.start()
            found = [process.version, process.model_format]
            process.close()
            with locked(file):
                known = {**_read_identities(file), key: found}
                write_json(file, known)
        version, model_format = known[key]
        return version, model_format


def list_sources() -> Iterator[CompilerSource]:
    """Yields the sources in order of preference.

    Raises [target-compiler] if the library that NPU_TARGET_COMPILER names is absent.
    """
    given = read_settings().target_compiler
    if given is not None:
        if not os.path.isfile(given):  # noqa: PTH113  # of names that are too long, too
            raise TargetError(
                f"`NPU_TARGET_COMPILER` must be the path of a library, got {str(given)!r}, which "
                "is not a file. Correct it, or unset it.",
                code="target-compiler",
            )
        yield CompilerSource("setting", given)
    seen = set[Path]()
    for kind, library in _linux_libraries():
        if library.resolve() not in seen:
            seen.add(library.resolve())
            yield CompilerSource(kind, library)
    releases = sorted(installed_folder().glob("[0-9]*"), key=_release_order, reverse=True)
    yield from filter(None, map(installed_source, releases))


def installed_source(folder: Path) -> CompilerSource | None:
    """Returns the source in the folder of an installed release, or None."""
    for name in _DLLS:
        if (folder / name).is_file():
            return CompilerSource("wine", folder / name, folder.name)
    return None


def find_source(release: str | None = None) -> CompilerSource:
    """Returns the first source, or the source of a release; [target-absent] if there is none."""
    sources = list(list_sources())
    for source in sources:
        if release in (None, source.release):
            return source
    have = ", ".join(source.release or str(source.library) for source in sources) or "none"
    wanted = "a compiler for NPUs" if release is None else f"release {release} of the NPU compiler"
    advice = "npu-compiler target install" + (f" {release}" if release else "")
    raise TargetError(
        f"target: {wanted} must be installed; found {have}. Run `{advice}`.", code="target-absent"
    )


def installed_folder() -> Path:
    """Returns the folder with one folder per installed release."""
    return _home() / "intel"


def wine_command() -> str:
    """Returns the path of Wine; [target-wine] if it is not installed."""
    for name in _WINE:
        found = shutil.which(name)
        if found is not None:
            return found
    raise TargetError(
        "target: Intel's NPU compiler for Windows runs under Wine, which is not installed. Run "
        "`apt-get install wine64`, or your system's equivalent.",
        code="target-wine",
    )


def _home() -> Path:
    return read_settings().cache_dir / "target"


def _linux_libraries() -> Iterator[tuple[str, Path]]:
    for name in _LIBRARIES:
        for folder in (*read_settings().library_folders, *map(Path, _FOLDERS)):
            if (folder / name).is_file():
                yield "driver" if "driver" in name else "openvino", folder / name
    spec = importlib.util.find_spec("openvino")
    for place in (
        spec.submodule_search_locations if spec and spec.submodule_search_locations else ()
    ):
        for name in _LIBRARIES:
            if (Path(place) / "libs" / name).is_file():
                yield "openvino", Path(place) / "libs" / name


def _as_windows(path: Path) -> str:
    return f"Z:{path.absolute()}".replace("/", "\\")


def _release_order(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split(".") if part.isdigit())


def _read_identities(file: Path) -> dict[str, list[str]]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

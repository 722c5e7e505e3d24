"""Builds the recording stub of the NPU plugin against the installed OpenVINO."""

from __future__ import annotations

import subprocess
from pathlib import Path

import openvino

__all__ = ["build_stub"]

SOURCE = Path(__file__).with_name("npu_stub.cpp")


def build_stub(folder: Path) -> Path:
    """Compiles the stub; returns the library for NPU_OPENVINO_LIBRARY.

    Args:
        folder: output folder of the library.
    """
    package = Path(openvino.__file__).parent
    (real,) = (package / "libs").glob("libopenvino_c.so.*")
    library = folder / "libnpu_stub.so"
    flags = ["-shared", "-fPIC", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
    linked = ["-Wl,--no-as-needed", str(real), f"-Wl,-rpath,{real.parent}"]
    command = ["g++", *flags, f'-DREAL_LIBRARY="{real}"', "-isystem", str(package / "include")]
    subprocess.run(
        [*command, str(SOURCE), *linked, "-Wl,--allow-shlib-undefined", "-o", str(library)],
        check=True,
    )
    return library

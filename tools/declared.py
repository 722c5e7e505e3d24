"""What the packages' pyproject.toml declare: versions, the ranges of what they need, their ends.

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
# What is wide enough a range, and near enough to our code, that both of its ends are tested.
FOREIGN = ("numpy", "openvino", "transformers")


@dataclass(frozen=True)
class Package:
    """One package of this repository, as its pyproject.toml declares it."""

    folder: Path
    project: dict[str, Any]
    build_requires: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its distribution's name, as an index spells it."""
        return canonicalize_name(self.project["name"])

    @property
    def version(self) -> Version:
        """The version in the tree."""
        return Version(self.project["version"])

    @property
    def tag(self) -> str:
        """The tag of a release of that version."""
        return f"{self.name}-v{self.version}"

    @property
    def needs(self) -> list[Requirement]:
        """What it needs at run time, extras left out."""
        return [Requirement(line) for line in self.project.get("dependencies", ())]

    @property
    def extras(self) -> list[Requirement]:
        """What its extras need."""
        groups: dict[str, list[str]] = self.project.get("optional-dependencies", {})
        return [Requirement(line) for lines in groups.values() for line in lines]


def read_packages(root: Path = ROOT) -> dict[str, Package]:
    """Reads the packages below `root`/packages, by their distributions' names."""
    found = {}
    for file in sorted((root / "packages").glob("*/pyproject.toml")):
        table = tomllib.loads(file.read_text())
        requires = tuple(table["build-system"]["requires"])
        package = Package(folder=file.parent, project=table["project"], build_requires=requires)
        found[package.name] = package
    return found


def floor(specifier: SpecifierSet) -> Version | None:
    """The lowest version that a range with `>=` names; None where it names none."""
    floors = [Version(part.version) for part in specifier if part.operator == ">="]
    return max(floors, default=None)


def pins(packages: dict[str, Package], name: str, end: str) -> list[str]:
    """Requirements for one end of a package's ranges: of FOREIGN, and of the siblings it needs.

    A sibling stands there at its floor, unless the tree has that very version; the highest version
    of a sibling is always the tree's.

    Args:
        packages: what `read_packages` returned.
        name: the package whose tests will run.
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

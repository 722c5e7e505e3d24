"""Release checks and tags; called by `nox -s release`.

`python tools/release.py` alone takes seconds and does not build. It changes nothing without --tag,
and with --tag only if there are no problems.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.version import Version

from declared import ROOT, Package, floor, read_packages

__all__ = ["IndexUnreachable", "find_problems", "tags_to_make", "versions_on_index"]

# Reserved domains (RFC 2606 and RFC 6761), which are placeholders.
_RESERVED = ("example", "invalid", "localhost", "test", "example.com", "example.net", "example.org")
# Contents of a distribution; tests and benchmarks may change without a release.
_SHIPPED = ("src", "csrc", "include", "cmake", "CMakeLists.txt", "pyproject.toml")
# A project on every index: if pip finds no versions of it, there is no index.
_ALWAYS_THERE = "pip"

Asked = Callable[[str], Collection[str]]


class IndexUnreachable(RuntimeError):
    """pip could not reach the index, so that a name without versions may still be taken."""


def find_problems(
    packages: dict[str, Package], tags: Collection[str], versions: Asked
) -> dict[str, list[str]]:
    """Returns obstacles to a release, by package.

    Args:
        packages: result of `declared.read_packages`.
        tags: all tags of the repository.
        versions: function that returns the versions of a distribution on the index, such as
            `versions_on_index`.
    """
    return {
        name: [
            *_version_problems(package, tags),
            *_changelog_problems(package),
            *_sibling_problems(package, packages, tags),
            *_url_problems(package),
            *_name_problems(package, tags, versions(name)),
        ]
        for name, package in packages.items()
    }


def tags_to_make(packages: dict[str, Package], tags: Collection[str]) -> list[str]:
    """Returns the tags of packages with an unreleased version."""
    return [package.tag for package in packages.values() if package.tag not in tags]


def versions_on_index(name: str) -> list[str]:
    """Returns the versions of a distribution that pip finds on its index; empty for a free name.

    pip lists only versions with a file for this platform, so another project with files only for
    other platforms looks free.

    Raises:
        IndexUnreachable: pip does not reach an index.
    """
    found = _ask_pip(name)
    if not found and not _ask_pip(_ALWAYS_THERE):
        raise IndexUnreachable(
            f"{name}: its versions on the index must be known before a release; pip finds no index "
            f"(not even {_ALWAYS_THERE} has versions). Check the network and `pip config list`."
        )
    return found


def _version_problems(package: Package, tags: Collection[str]) -> list[str]:
    version, found = package.version, []
    if version.local or version.is_devrelease:
        found.append(f"version {version} must not be a local or development version")
    released = _released(package.name, tags)
    if released and version < max(released):
        found.append(f"version {version} must not be below the released {max(released)}")
    return found


def _changelog_problems(package: Package) -> list[str]:
    text = (package.folder / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (\S+)([^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not sections:
        return ["CHANGELOG.md has no section; the first must be the version's"]
    version, remark, body = sections[0]
    if version != str(package.version):
        return [f"CHANGELOG.md must begin with {package.version}, got {version}"]
    found = []
    if "unreleased" in remark:
        found.append(f"CHANGELOG.md still calls {version} unreleased")
    if not body.strip():
        found.append(f"CHANGELOG.md must describe {version}, got an empty section")
    return found


def _sibling_problems(
    package: Package, packages: dict[str, Package], tags: Collection[str]
) -> list[str]:
    found = []
    needs = [*package.needs, *map(Requirement, package.build_requires)]
    for need in dict.fromkeys(needs):
        if need.name not in packages:
            continue
        sibling = packages[need.name]
        if {part.operator for part in need.specifier} != {">=", "<"}:
            found.append(f"{need} must be a range: >= and <")
            continue
        if not need.specifier.contains(sibling.version, prereleases=True):
            found.append(f"{need} must allow the tree's {sibling.name} {sibling.version}")
        lowest = floor(need.specifier)
        if lowest not in {sibling.version, *_released(sibling.name, tags)}:
            found.append(f"{need} must begin at a released version")
    return found


def _url_problems(package: Package) -> list[str]:
    urls: dict[str, str] = package.project.get("urls", {})
    if not urls:
        return ["[project.urls] is missing"]
    hosts = sorted({urlsplit(url).hostname or "" for url in urls.values()})
    return [
        f"[project.urls] must name the project's address, got the reserved {host}"
        for host in hosts
        if host.endswith(tuple(f".{name}" for name in _RESERVED)) or host in _RESERVED
    ]


def _name_problems(package: Package, tags: Collection[str], there: Collection[str]) -> list[str]:
    ours = _released(package.name, tags)
    strange = sorted({Version(text) for text in there} - ours)
    if not strange:
        return []
    span = f"{len(strange)} versions from {strange[0]} to {strange[-1]} have no tag here"
    return [f"the name {package.name} is a stranger's on the index: {span}; see the page Releasing"]


def _released(name: str, tags: Collection[str]) -> set[Version]:
    """Returns the released versions according to the tags."""
    start = f"{name}-v"
    return {Version(tag.removeprefix(start)) for tag in tags if tag.startswith(start)}


def _ask_pip(name: str) -> list[str]:
    options = ("--json", "--pre", "--ignore-requires-python")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", *options, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        versions: list[str] = json.loads(done.stdout)["versions"]
        return versions
    if "No matching distribution found" in done.stderr:
        return []
    raise IndexUnreachable(f"{name}: pip index versions failed: {done.stderr.strip()}")


def _git(*arguments: str, root: Path = ROOT) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _changes_since_release(package: Package, tags: Collection[str]) -> list[str]:
    """A released version whose shipped files differ from its tag needs a new number."""
    if package.tag not in tags:
        return []
    shipped = [str(package.folder / part) for part in _SHIPPED]
    changed = _git("diff", "--name-only", package.tag, "--", *shipped)
    if not changed:
        return []
    where = f"{len(changed)} of its files changed since, {changed[0]} first"
    return [f"version {package.version} is released, and {where}: it needs a new version"]


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tools/release.py", description=__doc__)
    parser.add_argument("--tag", action="store_true", help="make the tags of the release")
    given = parser.parse_args(arguments)
    packages, tags = read_packages(), _git("tag")
    try:
        problems = find_problems(packages, tags, versions_on_index)
    except IndexUnreachable as unreachable:
        print(unreachable, file=sys.stderr)
        return 1
    for name, package in packages.items():
        problems[name] += _changes_since_release(package, tags)
    wanted = tags_to_make(packages, tags)
    for name, package in packages.items():
        state = f"tag {package.tag}" if package.tag in wanted else "released"
        print(f"{name:13} {package.version!s:9} {state}")
        for problem in problems[name]:
            print(f"    {problem}")
    if any(problems.values()):
        print("Not released: see above.", file=sys.stderr)
        return 1
    if not wanted:
        print("Nothing to release: each version has its tag.")
        return 0
    if not given.tag:
        print("Ready. With --tag the tags are made.")
        return 0
    if _git("status", "--porcelain"):
        print("Not tagged: the work tree has changes that no commit holds.", file=sys.stderr)
        return 1
    for tag in wanted:
        _git("tag", "--annotate", tag, "--message", tag)
    print(
        f"Made {', '.join(wanted)}. Push them one by one, siblings first: see the page Releasing."
    )
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

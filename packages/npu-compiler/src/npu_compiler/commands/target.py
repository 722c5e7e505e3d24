"""`npu-compiler target`: installs and removes NPU vendors' compilers, and lists their targets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, aligned, give_answer, is_quiet

if TYPE_CHECKING:
    from npu_compiler.target_compiler.sources import CompilerSource

__all__ = ["add_target", "main"]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds --target, for one NPU."""
    parser.add_argument(
        "--target", default="lunar-lake", metavar="NAME",
        help="the NPU by name or number, such as meteor-lake or 4000 (default: lunar-lake); "
        "`npu-compiler target list` shows them",
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Installs or removes a release, or prints what is installed; returns the exit code."""
    parser = CommandParser(
        prog="npu-compiler target",
        description="Install Intel's NPU compiler, which compiles for an NPU that is not in this "
        "machine, remove it, or list the compilers that are here and their targets.",
    )
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser(
        "install", help="fetch a release of the compiler, 85 MB, which runs under Wine"
    )
    install.add_argument(
        "release", nargs="?", metavar="RELEASE", help="of OpenVINO; the latest one by default"
    )
    install.add_argument(
        "--wheel", type=Path, metavar="PATH",
        help="OpenVINO's wheel for Windows (cp311, win_amd64) in place of a download",
    )  # fmt: skip
    listing = actions.add_parser("list", help="list compilers, targets and what is missing")
    removal = actions.add_parser("remove", help="remove a release that was installed")
    removal.add_argument("release", metavar="RELEASE", help="of OpenVINO")
    for action in (install, listing, removal):
        add_json(action)
    options = parser.parse_args(arguments)
    if options.action == "install":
        return _install(options.release, options.wheel, options.json)
    if options.action == "remove":
        return _remove(options.release, options.json)
    return _list(options.json)


def _install(release: str | None, wheel: Path | None, answer: Path | None) -> int:
    from npu_compiler.target_compiler.install import LATEST, install  # help needs none

    chosen = release or LATEST
    _say(f"installing the compiler of OpenVINO {chosen} from {wheel or 'PyPI, 85 MB'}")
    source = install(chosen, wheel=wheel, shows_progress=not is_quiet() and sys.stderr.isatty())
    _say("starting it for the first time, which takes up to 15 s")
    version = source.version()
    found = {"release": chosen, "library": str(source.library), "version": version}
    give_answer(answer, found, lambda: print(f"installed OpenVINO {chosen}: {version}"))
    return 0


def _remove(release: str, answer: Path | None) -> int:
    from npu_compiler.target_compiler.install import remove  # help needs none

    remove(release)
    give_answer(answer, {"removed": release}, lambda: print(f"removed OpenVINO {release}"))
    return 0


def _list(answer: Path | None) -> int:
    from npu_compiler.target_compiler.install import RELEASES  # help needs none
    from npu_compiler.target_compiler.sources import list_sources
    from npu_compiler.target_compiler.targets import TARGETS

    sources = [_described(source) for source in list_sources()]
    found = {
        "sources": sources,
        "targets": [asdict(target) for target in TARGETS],
        "releases": list(RELEASES),
        "missing": list(_missing(sources)),
    }
    give_answer(answer, found, lambda: print("\n".join(_lines(found))))
    return 0


def _described(source: CompilerSource) -> dict[str, Any]:
    """Returns the source with its version, or with the reason why it does not start."""
    from npu_compiler.errors import TargetError

    version, problem = "", ""
    try:
        version = source.version()
    except TargetError as failure:
        problem = str(failure)
    return {
        "kind": source.kind,
        "release": source.release,
        "library": str(source.library),
        "version": version,
        "problem": problem,
    }


def _missing(sources: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    from npu_compiler.errors import TargetError
    from npu_compiler.target_compiler.sources import wine_command

    try:
        wine_command()
    except TargetError:
        yield {
            "what": "Wine, under which the releases of OpenVINO for Windows run",
            "command": "apt-get install wine64",
        }
    if not sources:
        yield {"what": "a compiler", "command": "npu-compiler target install"}


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield "compilers, the first of which is used:"
    rows = [
        (str(place), source["kind"], source["release"] or source["library"], _state(source))
        for place, source in enumerate(found["sources"], 1)
    ]
    yield from aligned(rows, indent=2) or ["  none"]
    yield "targets:"
    yield from aligned([(t["name"], t["number"], t["chip"]) for t in found["targets"]], indent=2)
    yield f"releases that can be installed: {', '.join(found['releases'])}"
    for one in found["missing"]:
        yield f"missing: {one['what']}. Run `{one['command']}`."


def _state(source: dict[str, Any]) -> str:
    return source["version"] or f"does not start: {source['problem']}"


def _say(text: str) -> None:
    if not is_quiet():
        print(f"npu-compiler target: {text}", file=sys.stderr)

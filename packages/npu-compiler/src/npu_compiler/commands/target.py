"""`npu-compiler target`: installs and removes NPU vendors' compilers, and lists their targets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, aligned, give_answer, is_quiet

__all__ = ["add_target", "main"]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Adds --target, for one NPU."""
    parser.add_argument(
        "--target", default="lunar-lake", metavar="NAME",
        help="NPU by name or number, such as meteor-lake or 4000 (default: lunar-lake); "
        "`npu-compiler target list` lists them",
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Installs or removes a release, or prints installed ones; returns the exit code."""
    parser = CommandParser(
        prog="npu-compiler target",
        description="Install or remove an NPU vendor's compiler, which compiles for NPUs that are "
        "not in this machine, or list installed compilers and their targets.",
    )
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser("install", help="fetch a release of a vendor's compiler")
    install.add_argument(
        "vendor", nargs="?", metavar="VENDOR", help="vendor in `npu-compiler target list`; by "
        "default the first, whose releases for Windows (85 MB) run under Wine",
    )  # fmt: skip
    install.add_argument(
        "release",
        nargs="?",
        metavar="RELEASE",
        help="release of the compiler; by default the latest",
    )
    install.add_argument(
        "--wheel", type=Path, metavar="PATH",
        help="downloaded file to install, such as OpenVINO's wheel for Windows",
    )  # fmt: skip
    install.add_argument(
        "--accept-licence", action="store_true",
        help="accept the terms of the vendor's toolkit without a prompt",
    )  # fmt: skip
    listing = actions.add_parser("list", help="list compilers, targets and missing parts")
    removal = actions.add_parser("remove", help="remove an installed release")
    removal.add_argument("vendor", metavar="VENDOR", nargs="?", help="as with install")
    removal.add_argument("release", metavar="RELEASE", help="release of the compiler")
    for action in (install, listing, removal):
        add_json(action)
    options = parser.parse_args(arguments)
    if options.action == "list":
        return _list(options.json)
    # These import vendors' wheels and OpenVINO, which help does not need.
    from npu_compiler.target_compiler.targets import find_vendor, vendors

    words = [word for word in (options.vendor, options.release) if word is not None]
    is_named = len(words) == 2 or (bool(words) and words[0][:1].isalpha())
    vendor = find_vendor(words.pop(0)) if is_named else vendors()[0]
    release = words[0] if words else None
    if options.action == "remove":
        vendor.remove(release or "")
        found = {"removed": release}
        give_answer(options.json, found, lambda: print(f"removed {vendor.name} {release}"))
        return 0
    _accept(vendor.name, vendor.licence, is_accepted=options.accept_licence)
    shows_progress = not is_quiet() and sys.stderr.isatty()
    found = vendor.install(release, wheel=options.wheel, shows_progress=shows_progress)
    text = f"installed {vendor.name} {found['release']}: {found['version']}"
    give_answer(options.json, found, lambda: print(text))
    return 0


def _accept(vendor: str, licence: str, *, is_accepted: bool) -> None:
    """Asks to accept terms in a terminal; [target-licence] if they are not accepted."""
    if not licence or is_accepted:
        return
    from npu_compiler.errors import TargetError

    if sys.stdin.isatty():
        print(f"{vendor}: the toolkit is under {licence}.", file=sys.stderr)
        print("Accept these terms? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise TargetError(
        f"{vendor}: the terms of the toolkit must be accepted; they are {licence}. Read them, and "
        "pass --accept-licence.",
        code="target-licence",
    )


def _list(answer: Path | None) -> int:
    from npu_compiler.target_compiler.targets import vendors  # help needs none

    targets = [target for vendor in vendors() for target in vendor.targets]
    found = {
        "targets": [asdict(target) for target in targets],
        "vendors": {vendor.name: vendor.state() for vendor in vendors()},
    }
    give_answer(answer, found, lambda: print("\n".join(_lines(found))))
    return 0


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield "targets:"
    yield from aligned([(t["name"], t["number"], t["chip"]) for t in found["targets"]], indent=2)
    for name, state in found["vendors"].items():
        yield f"{name}: compilers, the first of which is used:"
        rows = [
            (str(place), source["kind"], source["release"] or source["library"], _state(source))
            for place, source in enumerate(state["sources"], 1)
        ]
        yield from aligned(rows, indent=2) or ["  none"]
        yield f"  releases that can be installed: {', '.join(state['releases'])}"
        for one in state["missing"]:
            yield f"  missing: {one['what']}. Run `{one['command']}`."


def _state(source: dict[str, Any]) -> str:
    return source["version"] or f"does not start: {source['problem']}"

"""Intel's NPU compiler behind the interface of vendors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from npu_command.output import is_quiet
from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.install import LATEST, RELEASES, install, remove
from npu_compiler.target_compiler.sources import CompilerSource, list_sources, wine_command
from npu_compiler.target_compiler.targets import Target, Vendor

__all__ = ["TARGETS", "IntelCompiler"]

TARGETS = (
    Target("meteor-lake", "3720", "Meteor Lake", tiles=2),
    Target("lunar-lake", "4000", "Lunar Lake", tiles=4),
    Target("panther-lake", "5010", "Panther Lake", tiles=3),
    Target("wildcat-lake", "5020", "Wildcat Lake"),
)


class IntelCompiler(Vendor):
    """Compiles OpenVINO models; see npu_compiler.target_compiler.compile."""

    name = "intel"
    targets = TARGETS
    aliases: ClassVar = {"arrow-lake": "3720"}  # which has Meteor Lake's NPU
    takes_graphs = False

    def install(
        self, release: str | None, *, wheel: Path | None, shows_progress: bool
    ) -> dict[str, Any]:
        """Fetches a release; see npu_compiler.target_compiler.install."""
        chosen = release or LATEST
        _say(f"installing the compiler of OpenVINO {chosen} from {wheel or 'PyPI, 85 MB'}")
        source = install(chosen, wheel=wheel, shows_progress=shows_progress)
        _say("starting it for the first time, which takes up to 15 s")
        version = source.version()
        return {"release": chosen, "library": str(source.library), "version": version}

    def remove(self, release: str) -> None:
        """Removes an installed release."""
        remove(release)

    def state(self) -> dict[str, Any]:
        """Returns libraries of drivers and of OpenVINO, installed releases, and missing parts."""
        sources = [_described(source) for source in list_sources()]
        missing = list(_missing(sources))
        return {"sources": sources, "releases": list(RELEASES), "missing": missing}


def _described(source: CompilerSource) -> dict[str, Any]:
    """Returns the source with its version, or the reason why it does not start."""
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
    try:
        wine_command()
    except TargetError:
        yield {
            "what": "Wine, under which the releases of OpenVINO for Windows run",
            "command": "apt-get install wine64",
        }
    if not sources:
        yield {"what": "a compiler", "command": "npu-compiler target install"}


def _say(text: str) -> None:
    if not is_quiet():
        print(f"npu-compiler target: {text}", file=sys.stderr)

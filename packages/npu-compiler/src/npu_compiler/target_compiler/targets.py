"""The NPU generations that a vendor's compiler compiles for, by name and by number."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from npu_compiler.errors import OptionError

__all__ = ["TARGETS", "Target", "find_target"]


@dataclass(frozen=True)
class Target:
    """One NPU generation.

    Attributes:
        name: in lower case with dashes, such as "lunar-lake".
        number: the vendor's platform number, such as "4000".
        chip: the processor's name, such as "Lunar Lake".
        tiles: of the largest model of the generation; 0 if unknown.
    """

    name: str
    number: str
    chip: str
    tiles: int = 0

    def __str__(self) -> str:
        return f"NPU {self.number} ({self.chip})"


TARGETS = (
    Target("meteor-lake", "3720", "Meteor Lake", tiles=2),
    Target("lunar-lake", "4000", "Lunar Lake", tiles=4),
    Target("panther-lake", "5010", "Panther Lake", tiles=3),
    Target("wildcat-lake", "5020", "Wildcat Lake"),
)
# Arrow Lake has Meteor Lake's NPU.
_ALIASES = {"arrow-lake": "3720"}


def find_target(name: str) -> Target:
    """Returns the target with a name or a number.

    Args:
        name: such as "lunar-lake", "Lunar Lake", "4000" or "NPU4000".

    Raises:
        OptionError: [unknown-target] no generation has this name.
    """
    wanted = str(name).strip().lower().replace(" ", "-").replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted.removeprefix("npu").lstrip("-"))
    for target in TARGETS:
        if wanted in (target.name, target.number):
            return target
    known = [target.name for target in TARGETS]
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(f"{target.name} ({target.number})" for target in TARGETS)
    raise OptionError(
        f"target: must be one of {listed}; got {name!r}.{hint} `npu-compiler target list` shows "
        "them.",
        code="unknown-target",
    )

"""All architectures of the suite, and their families, in the order in which they are shown.

The rows themselves are in one file per family.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from npu_compiler.errors import SuiteError
from npu_compiler.suite import (
    audio,
    encoder_decoders,
    encoders,
    mixture_of_experts,
    multimodal,
    state_space,
    text_decoders,
    vision,
)
from npu_compiler.suite.architecture import Architecture

__all__ = ["ARCHITECTURES", "FAMILIES", "find", "select"]

ARCHITECTURES: tuple[Architecture, ...] = (
    *text_decoders.ARCHITECTURES,
    *encoders.ARCHITECTURES,
    *vision.ARCHITECTURES,
    *audio.ARCHITECTURES,
    *multimodal.ARCHITECTURES,
    *encoder_decoders.ARCHITECTURES,
    *mixture_of_experts.ARCHITECTURES,
    *state_space.ARCHITECTURES,
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(row.family for row in ARCHITECTURES))


def find(name: str) -> Architecture:
    """Returns the architecture of that name.

    Raises:
        SuiteError: [suite-name] there is none; names that are spelt alike are quoted.
    """
    for row in ARCHITECTURES:
        if row.name == name:
            return row
    raise _unknown("architecture", name, [row.name for row in ARCHITECTURES])


def select(names: Iterable[str] = (), family: str | None = None) -> tuple[Architecture, ...]:
    """Returns the architectures of these names, or of a family, or all.

    Raises:
        SuiteError: [suite-name] a name or the family is not known.
    """
    if family is not None and family not in FAMILIES:
        raise _unknown("family", family, FAMILIES)
    rows = tuple(find(name) for name in names) or ARCHITECTURES
    return tuple(row for row in rows if family in (None, row.family))


def _unknown(what: str, name: str, known: Iterable[str]) -> SuiteError:
    listed = sorted(known)
    close = difflib.get_close_matches(name, listed, n=3)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(listed)}."
    return SuiteError(
        f"npu_compiler.suite: {what} must be one of its own; got {name!r}. {hint}",
        code="suite-name",
    )

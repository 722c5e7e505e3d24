"""All architectures of the suite and their families, in display order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from npu_compiler.errors import SuiteError
from npu_compiler.suite.families import (
    audio,
    encoder_decoders,
    encoders,
    multimodal,
    text_decoders,
    timm_models,
    vision,
)
from npu_compiler.suite.families.architecture import Architecture

__all__ = ["ARCHITECTURES", "FAMILIES", "LEFT_OUT", "find", "select"]

ARCHITECTURES: tuple[Architecture, ...] = (
    *text_decoders.ARCHITECTURES,
    *encoders.ARCHITECTURES,
    *vision.ARCHITECTURES,
    *audio.ARCHITECTURES,
    *multimodal.ARCHITECTURES,
    *encoder_decoders.ARCHITECTURES,
    *text_decoders.MIXTURES,
    *text_decoders.STATE_SPACES,
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(row.family for row in ARCHITECTURES))

# Architectures that were tried and left out -> reason. The page lists them, so that the counts are
# not read as all.
LEFT_OUT: dict[str, str] = {
    "paligemma": "differs from eager by 7e-2, as much as with torch's backend aot_eager; "
    "the place of the difference is unknown",
    "vilt": "was cut by 10 graph breaks and differed by more than 1; it selects patches "
    "at random, so its results cannot be compared directly",
    "encodec": "was right in 23 programs with 17 graph breaks, but its small variant gave the "
    "same sound for different inputs, so the comparison was meaningless",
    "splinter, pp_lcnet": "give nearly the same result for different inputs in their small form",
    "vit_mae": "draws the kept patches at random",
    "nystromformer": "accepts only one number of tokens",
    "starnet of timm": "multiplies activations by each other until float32 loses all digits: "
    "with random weights eager float32 is off by more than 1 from eager float64",
    "efficientformer of timm": "accepts only images of 224 pixels",
}


def find(name: str) -> Architecture:
    """Returns the architecture with a name, of transformers or timm.

    Raises:
        SuiteError: [suite-name] if there is none; the message has similar names.
    """
    rows = ARCHITECTURES + timm_models.ARCHITECTURES
    for row in rows:
        if row.name == name:
            return row
    raise _unknown("architecture", name, [row.name for row in rows])


def select(
    names: Iterable[str] = (), family: str | None = None, *, is_timm: bool = False
) -> tuple[Architecture, ...]:
    """Returns the architectures with these names, of a family, or all of transformers or timm.

    Raises [suite-name] for an unknown name or family.
    """
    if family is not None and family not in FAMILIES:
        raise _unknown("family", family, FAMILIES)
    every = timm_models.ARCHITECTURES if is_timm else ARCHITECTURES
    rows = tuple(find(name) for name in names) or every
    return tuple(row for row in rows if family in (None, row.family))


def _unknown(what: str, name: str, known: Iterable[str]) -> SuiteError:
    listed = sorted(known)
    close = difflib.get_close_matches(name, listed, n=3)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(listed)}."
    return SuiteError(
        f"npu_compiler.suite: {what} must be one of the suite, got {name!r}. {hint}",
        code="suite-name",
    )

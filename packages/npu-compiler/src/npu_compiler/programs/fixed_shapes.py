"""Fixes the shapes in a model's XML text, for devices with static programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["with_shapes"]

_PARAMETER = re.compile(r'name="([^"]+)" type="Parameter"[^>]*>\s*<data shape="([^"]*)"')


def with_shapes(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Returns an .xml file's text with these shapes at its inputs, by friendly name."""

    def put(match: re.Match[str]) -> str:
        name, old = match.groups()
        if name not in shapes:  # of a loop's body, which has fixed sizes already
            return match.group(0)
        new = ",".join(map(str, shapes[name]))
        return match.group(0).removesuffix(f'shape="{old}"') + f'shape="{new}"'

    return _PARAMETER.sub(put, text)

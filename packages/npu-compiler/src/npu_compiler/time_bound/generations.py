"""The published figures of each generation, each with where and when it was published.

Panther Lake is left out: no published width and speed of its memory was at hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Figure", "Generation", "generation_figures"]


@dataclass(frozen=True)
class Figure:
    """One published number.

    Attributes:
        value: in the unit of its name.
        source: file and commit, slide, or address.
        date: of publication, as far as it is known.
    """

    value: float
    source: str
    date: str


@dataclass(frozen=True)
class Generation:
    """What bounds a generation's speed: its fastest model with its fastest memory.

    Attributes:
        name: such as "4000".
        chip: the processors that have it.
        tiles: how many there are.
        macs_per_tile: products of 8 bits that one tile adds up in a cycle.
        half_ratio: how many times slower products of float16 are.
        frequency_mhz: the highest of the array.
        bandwidth_gbps: of the memory, in 1e9 bytes a second.
    """

    name: str
    chip: str
    tiles: Figure
    macs_per_tile: Figure
    half_ratio: Figure
    frequency_mhz: Figure
    bandwidth_gbps: Figure

    @property
    def narrow_macs_per_s(self) -> float:
        """Products of 8 bits a second."""
        return self.tiles.value * self.macs_per_tile.value * self.frequency_mhz.value * 1e6

    @property
    def half_macs_per_s(self) -> float:
        """Products of float16 a second."""
        return self.narrow_macs_per_s / self.half_ratio.value

    @property
    def bytes_per_s(self) -> float:
        """Bytes between memory and scratchpad a second."""
        return self.bandwidth_gbps.value * 1e9


def generation_figures(name: str) -> Generation | None:
    """Returns a generation's figures; None if they are not published.

    Args:
        name: such as "4000".
    """
    return _figures().get(name)


@cache
def _figures() -> dict[str, Generation]:
    content = json.loads((Path(__file__).parent / "generations.json").read_text())
    return {
        name: Generation(
            name=name,
            chip=row["chip"],
            **{key: Figure(**value) for key, value in row.items() if key != "chip"},
        )
        for name, row in content.items()
    }

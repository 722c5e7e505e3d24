"""Roofline bounds of a program's time on each NPU generation."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov

from npu_compiler.roofline.counts import (
    Products,
    Traffic,
    count_products,
    count_traffic,
    live_nodes,
)
from npu_runtime.public_calls import public_call

__all__ = ["BOUND_NOTE", "Figure", "Generation", "TimeBound", "bound_model", "generation_figures"]

# Panther Lake is missing, because the width and speed of its memory are not published.


@dataclass(frozen=True)
class Figure:
    """One published number."""

    value: float  # in the unit of its name
    source: str  # file and commit, slide, or address
    date: str  # of publication, as far as known


@dataclass(frozen=True)
class Generation:
    """Speed limits of a generation: its fastest model with its fastest memory."""

    name: str  # such as "4000"
    chip: str  # processors with this NPU
    tiles: Figure  # number of tiles
    macs_per_tile: Figure  # 8-bit multiply-accumulates of one tile per cycle
    half_ratio: Figure  # slowdown of float16 products
    frequency_mhz: Figure  # highest clock of the array
    bandwidth_gbps: Figure  # of the memory, in 1e9 bytes per second

    @property
    def narrow_macs_per_s(self) -> float:
        """8-bit products per second."""
        return self.tiles.value * self.macs_per_tile.value * self.frequency_mhz.value * 1e6

    @property
    def half_macs_per_s(self) -> float:
        """float16 products per second."""
        return self.narrow_macs_per_s / self.half_ratio.value

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second between memory and scratchpad."""
        return self.bandwidth_gbps.value * 1e9


def generation_figures(name: str) -> Generation | None:
    """Returns the figures of a generation such as "4000"; None if they are not published."""
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


# Memory and array work in parallel, and weights may be prefetched, so times of single operations
# cannot be added. The bound is the maximum of all bytes / bandwidth and all products / array rate.

_SHOWN = 5
# Ports, constants and views, which compute nothing.
_WITHOUT_COMPUTE = frozenset(
    {"Assign", "Constant", "Parameter", "ReadValue", "Reshape", "Result", "ShapeOf", "Squeeze",
     "Unsqueeze"}
)  # fmt: skip
BOUND_NOTE = (
    "a lower bound from published figures and not a measurement: the largest chip of the "
    "generation with its fastest memory, every weight dense and read once, nothing waited for"
)


@dataclass(frozen=True)
class TimeBound:
    """A lower bound on the time of one run of a program.

    Attributes:
        name: of the program.
        generation: figures of the generation, with sources.
        products: operations of the array, in the model's order.
        traffic: bytes that must be transferred.
        left_out: operations that are not counted, by type: software kernels (their rates are not
            published) and moves inside the scratchpad.
    """

    name: str
    generation: Generation
    products: tuple[Products, ...]
    traffic: Traffic
    left_out: Mapping[str, int]

    @property
    def memory_s(self) -> float:
        """Time of the transfers, in seconds."""
        return self.traffic.total_bytes / self.generation.bytes_per_s

    @property
    def array_s(self) -> float:
        """Time of the products, in seconds."""
        return sum(map(self.product_s, self.products))

    @property
    def seconds(self) -> float:
        """The bound, in seconds."""
        return max(self.memory_s, self.array_s)

    @property
    def limit(self) -> str:
        """The limiting resource: "memory" or "array"."""
        return "memory" if self.memory_s >= self.array_s else "array"

    @public_call
    def product_s(self, products: Products) -> float:
        """Returns the time of one operation in the array, in seconds."""
        figures = self.generation
        rate = figures.narrow_macs_per_s if products.is_narrow else figures.half_macs_per_s
        return products.count / rate

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON-compatible values, with a note on their kind."""
        fields = dataclasses.asdict(self)
        computed = {
            "note": BOUND_NOTE,
            "least_seconds": self.seconds,
            "memory_seconds": self.memory_s,
            "array_seconds": self.array_s,
            "limit": self.limit,
        }
        return {**computed, **fields}

    def __str__(self) -> str:
        figures, traffic = self.generation, self.traffic
        moved = (
            f"{_size(traffic.weight_bytes)} of weights, {_size(traffic.input_bytes)} of inputs, "
            f"{_size(traffic.output_bytes)} of outputs at {figures.bandwidth_gbps.value} GB/s"
        )
        lines = [
            f"{_time(self.seconds)} on NPU {figures.name} ({figures.chip})",
            f"memory  {_time(self.memory_s)}  {moved}",
            f"array   {_time(self.array_s)}  {self._product_text()}",
        ]
        largest = sorted(self.products, key=self.product_s, reverse=True)[:_SHOWN]
        lines += [
            f"        {_time(self.product_s(one))}  {one.operation} {one.node}" for one in largest
        ]
        if self.left_out:
            listed = ", ".join(f"{count} {kind}" for kind, count in self.left_out.items())
            lines.append(f"left out, since no rate of theirs is published: {listed}")
        return "\n".join([*lines, f"This is {BOUND_NOTE}."])

    def _product_text(self) -> str:
        counts = {narrow: self._count(narrow=narrow) for narrow in (False, True)}
        rates = {False: self.generation.half_macs_per_s, True: self.generation.narrow_macs_per_s}
        names = {False: "float16", True: "8 bits or fewer"}
        said = [
            f"{counts[narrow]:,} products of {names[narrow]} at "
            f"{rates[narrow] / 1e12:.1f}e12 a second"
            for narrow in (False, True)
            if counts[narrow]
        ]
        return ", ".join(said) or "no products"

    def _count(self, *, narrow: bool) -> int:
        return sum(one.count for one in self.products if one.is_narrow == narrow)


def bound_model(model: ov.Model, *, name: str, generation: Generation) -> TimeBound:
    """Computes the time bound of a program with static shapes."""
    nodes = model.get_ordered_ops()
    products: list[Products] = []
    others: Counter[str] = Counter()
    live = live_nodes(nodes)
    for node in nodes:
        if node.get_name() not in live:
            continue
        found = count_products(node)
        if found is not None:
            products.append(found)
        elif node.get_type_name() not in _WITHOUT_COMPUTE:
            others[node.get_type_name()] += 1
    left_out = dict(sorted(others.items(), key=lambda item: (-item[1], item[0])))
    return TimeBound(name, generation, tuple(products), count_traffic(model), left_out)


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _size(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"

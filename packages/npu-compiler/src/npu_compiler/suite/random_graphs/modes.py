"""How a drawn graph is compiled: which way, sizes, precision, properties, and from where."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.options import POWERS_OF_TWO, CompilerConfig
from npu_compiler.suite.random_graphs.graph import RandomGraph

__all__ = ["PLAIN", "Mode", "draw_mode"]

# Each property that the platform sets somewhere, at a value that a caller may choose.
_PROPERTIES: tuple[dict[str, str], ...] = (
    {"SNIPPETS_MODE": "DISABLE"},
    {"PERFORMANCE_HINT": "THROUGHPUT"},
    {"NUM_STREAMS": "2"},
    {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"},
    {"KV_CACHE_PRECISION": "u8"},
)
_BUCKETS: tuple[tuple[int, ...] | str, ...] = (POWERS_OF_TWO, (4, 8, 16), (3, 12))


@dataclass(frozen=True)
class Mode:
    """One way to compile a graph.

    Attributes:
        way: "recorded", "traced", "aot" or "dynamo"; see npu_compiler.suite.random_graphs
            .capturing.
        sizes: "static", "dynamic" or "buckets".
        buckets: with the last of these, as in CompilerConfig.
        start: "fresh", or "cache": compiled once before, and then loaded.
        precision: in which programs compute; empty for the graph's own.
        properties: of the device's compiler.
        verify: as in CompilerConfig. "off" judges what the device's compiler makes.
        nan: likewise.
        device: where tensors live, "cpu" or "npu".
        target: as in CompilerConfig.
    """

    way: str = "recorded"
    sizes: str = "static"
    buckets: tuple[int, ...] | str | None = None
    start: str = "fresh"
    precision: str = ""
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    verify: str = "off"
    nan: str | None = None
    device: str = "cpu"
    target: str = "openvino"

    def config(self, cache_dir: Path | None) -> CompilerConfig:
        """The compiler's options for it."""
        return CompilerConfig(
            dtype=self.precision or None,
            buckets=self.buckets,
            device_options=self.properties,
            verify=self.verify,
            nan=self.nan,
            target=self.target,
            cache_dir=cache_dir,
        )

    def labels(self) -> list[str]:
        """What of it is counted, as in "sizes: dynamic"."""
        found = [f"way: {self.way}", f"sizes: {self.sizes}", f"start: {self.start}"]
        found += [f"precision: {self.precision or 'own'}", f"verify: {self.verify}"]
        found += [f"device: {self.device}", f"target: {self.target}"]
        return found + [f"property: {key}={value}" for key, value in self.properties.items()]

    def simpler(self) -> list[Mode]:
        """The same with one thing less."""
        plain = dataclasses.asdict(PLAIN)
        own = dataclasses.asdict(self)
        tied = {"sizes": ("sizes", "buckets", "way"), "buckets": (), "way": ("way",)}
        found = []
        for name in own:
            group = tied.get(name, (name,))
            if group and own[name] != plain[name]:
                changes: dict[str, Any] = {each: plain[each] for each in group}
                found.append(dataclasses.replace(self, **changes))
        return found

    def to_json(self) -> str:
        """One line, from which `from_json` makes the same mode."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Mode:
        """The mode that `to_json` wrote down."""
        fields = json.loads(line)
        if isinstance(fields["buckets"], list):
            fields["buckets"] = tuple(fields["buckets"])
        return cls(**fields)


PLAIN = Mode()


def draw_mode(
    seed: int, number: int, kind: str, graph: RandomGraph, *, verify: str = "", target: str = ""
) -> Mode:
    """Draws how to compile the graph of a seed and number.

    Args:
        seed: of the run.
        number: of the graph.
        kind: of the graph, as draw_graph says.
        graph: what is to be compiled.
        verify: for all graphs of a run; by default "first" for one of twelve, "off" for the others.
        target: for all graphs of a run; by default "kernels" for one of four, "openvino" for the
            others.
    """
    chance = random.Random(f"mode {seed} {number}")

    def one_in(times: int) -> bool:
        return chance.randrange(times) == 0

    way, sizes = "recorded", "static"
    if graph.is_writing or one_in(12):
        way = "aot"
    is_named = any(set(names) - {"-"} for names in graph.names())
    if is_named and one_in(6) and not graph.is_writing:
        way, sizes = "traced", chance.choice(("dynamic", "buckets"))
    if one_in(60):
        way = "dynamo"
    return Mode(
        way=way,
        sizes=sizes,
        buckets=chance.choice(_BUCKETS) if sizes == "buckets" else None,
        start="cache" if one_in(8) else "fresh",
        precision=chance.choice(("", "", "", "", "float32", "bfloat16", "float16")),
        properties=chance.choice(_PROPERTIES) if one_in(3) else {},
        verify=verify or ("first" if one_in(12) else "off"),
        nan="propagate" if kind == "edges" else None,
        device=chance.choice(("cpu", "cpu", "cpu", "npu")),
        target=target or ("kernels" if one_in(4) else "openvino"),
    )

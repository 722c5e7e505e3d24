"""Modes of compilation, and reproducers of failures."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.fuzz.graph import InputSpec, Mark, RandomGraph, Ref, Step, make_input
from npu_compiler.options import POWERS_OF_TWO, CompilerConfig
from npu_compiler.target_compiler import find_target, vendor_of

__all__ = ["PLAIN", "Mode", "body_text", "draw_mode", "reproducer"]

# Each property that the platform may set, with a valid value.
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
    """One way to compile a graph."""

    # "recorded", "traced", "aot" or "dynamo"; see npu_compiler.fuzz.capturing.
    way: str = "recorded"
    sizes: str = "static"  # "static", "dynamic" or "buckets"
    buckets: tuple[int, ...] | str | None = None  # for "buckets", as in CompilerConfig
    start: str = "fresh"  # "fresh", or "cache": compiled once before, and then loaded
    precision: str = ""  # of programs; empty for the graph's own precision
    # Options of the device's compiler.
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    verify: str = "off"  # as in CompilerConfig. "off" tests only the device's compiler
    nan: str | None = None
    device: str = "cpu"  # where tensors live, "cpu" or "npu"
    target: str = "openvino"  # as in CompilerConfig

    def config(self, cache_dir: Path | None) -> CompilerConfig:
        """Returns the compiler's options for it."""
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
        """Returns the labels to count, such as "sizes: dynamic"."""
        found = [f"way: {self.way}", f"sizes: {self.sizes}", f"start: {self.start}"]
        found += [f"precision: {self.precision or 'own'}", f"verify: {self.verify}"]
        found += [f"device: {self.device}", f"target: {self.target}"]
        return found + [f"property: {key}={value}" for key, value in self.properties.items()]

    def simpler(self) -> list[Mode]:
        """Yields modes with one deviation less."""
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
        """Returns one line of JSON, which `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Mode:
        """Reads a line of `to_json`."""
        fields = json.loads(line)
        if isinstance(fields["buckets"], list):
            fields["buckets"] = tuple(fields["buckets"])
        return cls(**fields)


PLAIN = Mode()


def draw_mode(
    seed: int, number: int, kind: str, graph: RandomGraph, *, verify: str = "", target: str = ""
) -> Mode:
    """Draws a mode for the graph of a seed and number, given its kind from draw_graph.

    By default `verify` is "first" for one graph of twelve, "off" for the others; `target` is
    "kernels" for one of four, "openvino" for the others.
    """
    chance = random.Random(f"mode {seed} {number}")
    if CompilerConfig(target=target or None).is_for_vendor:
        return _vendor_mode(verify or "off", target, chance)

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
    verify = verify or ("first" if one_in(12) else "off")
    is_edge = kind == "edges" or (verify == "first" and one_in(2))
    return Mode(
        way=way,
        sizes=sizes,
        buckets=chance.choice(_BUCKETS) if sizes == "buckets" else None,
        start="cache" if one_in(8) else "fresh",
        precision=chance.choice(("", "", "", "", "float32", "bfloat16", "float16")),
        properties=chance.choice(_PROPERTIES) if one_in(3) else {},
        verify=verify,
        nan="propagate" if is_edge else None,
        device=chance.choice(("cpu", "cpu", "cpu", "npu")),
        target=target or ("kernels" if one_in(4) else "openvino"),
    )


def _vendor_mode(verify: str, target: str, chance: random.Random) -> Mode:
    """Draws a mode for a vendor's compiler, which has one way to compile static sizes."""
    precision = vendor_of(find_target(target, graphs=True)).precision
    device = chance.choice(("cpu", "npu"))
    return Mode(precision=precision, verify=verify, device=device, target=target)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@"}
_LITERAL_CELLS = 24


def reproducer(graph: RandomGraph, mode: Mode) -> str:
    """Returns a program that prints eager's and the compiled results of a graph in a mode."""
    taken = ", ".join(f"x{i}" for i, spec in enumerate(graph.inputs))
    lines = ["import torch", "import torch.nn.functional as F", "from torch import inf, nan", ""]
    lines += [f"def f({taken}):", *(f"    {line}" for line in body_text(graph).splitlines()), ""]
    lines += [f"x{i} = {_input_text(spec)}" for i, spec in enumerate(graph.inputs)]
    if mode.device == "npu":
        lines.append(f"{taken}, = (x.to('npu') for x in ({taken},))")
    frozen = [i for i, spec in enumerate(graph.inputs) if spec.frozen]
    note = f"  # x{', x'.join(map(str, frozen))} frozen" if frozen else ""
    dynamic = "" if mode.sizes == "static" else "dynamic=True, "
    if mode.sizes != "static":
        lines.append("# also with other sizes")
    compiled = f'torch.compile(f, backend="npu", {dynamic}options={_options(mode)})'
    lines += [
        "with torch.no_grad():",
        f"    print(f({_cloned(graph)}))",
        f"    print({compiled}({taken})){note}",
    ]
    return "\n".join(lines)


def body_text(graph: RandomGraph) -> str:
    """Returns the calls of a graph as lines of Python."""
    lines = []
    for number, step in enumerate(graph.steps, len(graph.inputs)):
        lines.append(f"x{number} = {_call_text(step)}")
    return "\n".join([*lines, f"return {', '.join(f'x{i}' for i in graph.outputs)},"])


def _options(mode: Mode) -> dict[str, Any]:
    config, plain = mode.config(None), CompilerConfig()
    names = ("verify", "dtype", "buckets", "device_options", "nan", "target")
    values = {name: getattr(config, name) for name in names}
    return {key: value for key, value in values.items() if value != getattr(plain, key)}


def _cloned(graph: RandomGraph) -> str:
    clone = ".clone()" if graph.is_writing else ""
    return ", ".join(f"x{index}{clone}" for index in range(len(graph.inputs)))


def _call_text(step: Step) -> str:
    kind, _, name = step.target.partition(".")
    listed = [_text(each) for each in step.arguments]
    if kind == "operator":
        if name == "getitem":
            index = step.arguments[1]
            inner = ", ".join(map(_text, index)) if isinstance(index, tuple) else listed[1]
            return f"{listed[0]}[{inner}]"
        if name in _INFIX:
            return f"{listed[0]} {_INFIX[name]} {listed[1]}"
        return f"-{listed[0]}"
    keywords = [f"{key}={_text(value)}" for key, value in step.keywords.items()]
    if kind == "method":
        return f"{listed[0]}.{name}({', '.join([*listed[1:], *keywords])})"
    return f"{step.target}({', '.join([*listed, *keywords])})"


def _text(value: Any) -> str:
    if isinstance(value, Ref):
        return f"x{value.value}"
    if isinstance(value, Mark):
        return _mark_text(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    return repr(value)


def _mark_text(mark: Mark) -> str:
    if mark.kind == "size":
        return f"x{mark.content[0]}.size({mark.content[1]})"
    if mark.kind == "dtype":
        return f"torch.{mark.content}"
    if mark.kind == "rest":
        return "..."
    return ":".join("" if part is None else str(part) for part in mark.content[:2]) + (
        "" if mark.content[2] is None else f":{mark.content[2]}"
    )


def _input_text(spec: InputSpec) -> str:
    shape, dtype = tuple(spec.shape), f"torch.{spec.dtype}"
    is_long = make_input(spec).numel() > _LITERAL_CELLS and "float" in spec.dtype
    generator = f"generator=torch.Generator().manual_seed({spec.seed})"
    if is_long and spec.fill == "normal":
        text = f"torch.randn({shape}, {generator})"
    elif is_long and spec.fill == "small":
        text = f"torch.randn({shape}, {generator}) / 5"
    else:
        plain = InputSpec(shape, spec.dtype, spec.fill, spec.seed, bound=spec.bound)
        return _laid_out(f"torch.tensor({make_input(plain).tolist()}, dtype={dtype})", spec)
    if spec.dtype != "float32":
        text = f"({text}).to({dtype})"
    return _laid_out(f"({text})" if " / " in text else text, spec)


def _laid_out(text: str, spec: InputSpec) -> str:
    if spec.order:
        inverse = [spec.order.index(axis) for axis in range(len(spec.order))]
        return f"{text}.permute({spec.order}).contiguous().permute({inverse})"
    shape = tuple(spec.shape)
    if not shape:
        return text
    return {
        "": text,
        "expanded": f"{text}[:1].expand({shape})",
        "sliced": f"F.pad({text}, (2, 1))[..., 2:-1]",
        "strided": f"{text}.repeat_interleave(2, -1)[..., ::2]",
        "interleaved": f"torch.stack([{text}] * 3, 1)[:, 1]",
        "offset": f"F.pad({text}.flatten(), (5, 0))[5:].view({shape})",
    }[spec.layout]

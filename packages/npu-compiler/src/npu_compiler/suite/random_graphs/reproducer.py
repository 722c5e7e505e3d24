"""A graph as a few lines of plain torch that a reader can paste."""

from __future__ import annotations

from typing import Any

from npu_compiler.options import CompilerConfig
from npu_compiler.suite.random_graphs.graph import Mark, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.inputs import InputSpec, make_input
from npu_compiler.suite.random_graphs.modes import Mode

__all__ = ["body_text", "reproducer"]

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
    """The calls of a graph as lines of Python."""
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

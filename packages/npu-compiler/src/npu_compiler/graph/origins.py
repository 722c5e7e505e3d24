"""Origins of calls: modules, source lines and names, and a graph as text with them."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import op_name
from npu_runtime.public_calls import public_call

__all__ = [
    "call_place",
    "graph_text",
    "graph_title",
    "is_kept_float32",
    "keep_name",
    "keep_source_names",
    "kept_source_name",
    "mark_kept_float32",
    "module_path",
    "node_origins",
    "node_place",
    "note_source_names",
    "python_line",
    "source_line",
    "source_names",
]

# Layers of a program have the names of these calls, which maps a layer's time to the model's code.

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent) + "/"

# Dynamo's notation for the path from the compiled function to a module.
_ROOT = re.compile(r"^L\['self'\]|^L\['\w+'\]|^self\b")
_STEP = re.compile(r"\['?(\w+)'?\]")
_INNER = ("_modules", "_orig_mod")


@public_call
def node_origins(graph: fx.Graph) -> dict[str, tuple[str, str]]:
    """Returns the origin of each call that has one, by the node's name.

    Args:
        graph: aten calls with "nn_module_stack" and "stack_trace" of tracing in `meta`.

    Returns:
        The path of the innermost torch module in its root model (for the root, its class), and
        "file.py:123", the innermost line outside of torch; "" if unknown.
    """
    origins = {}
    for node in graph.nodes:
        if node.op == "call_function":
            origin = (module_path(node), python_line(node))
            if any(origin):
                origins[node.name] = origin
    return origins


@public_call
def source_line(node: fx.Node) -> str | None:
    """Returns `file:line` of a node's Python code, or None if not recorded."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    if not trace:
        return None
    place = None
    for line in str(trace).splitlines():
        text = line.strip()
        if text.startswith('File "'):
            file, _, rest = text[6:].partition('", line ')
            place = f"{file}:{rest.split(',')[0]}"
    return place


def node_place(node: fx.Node) -> str:
    """Returns a node's name, and its Python line if recorded, for error messages."""
    line = source_line(node)
    return f"node {node.name}, {line}" if line else f"node {node.name}"


def graph_title(graph: fx.Graph) -> str:
    """Returns a title such as "Encoder at model.py:87": outermost module and first line.

    The title has "function" if no call is from a module.
    """
    stacks = (node.meta.get("nn_module_stack") for node in graph.nodes)
    kinds = [next(iter(stack.values()))[1] for stack in stacks if stack]
    kind = _class_name(kinds[0]) if kinds else "function"
    line = next((text for node in graph.nodes if (text := python_line(node))), "")
    return f"{kind} at {Path(line).name}" if line else kind


def module_path(node: fx.Node) -> str:
    """Returns the path of a call's innermost module; for the root its class, or ""."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    return _plain_path(str(path)) or _class_name(kind)


def _plain_path(path: str) -> str:
    dotted = _STEP.sub(r".\1", _ROOT.sub("", path))
    return ".".join(step for step in dotted.split(".") if step and step not in _INNER)


def _class_name(kind: Any) -> str:
    return (kind.__name__ if isinstance(kind, type) else str(kind)).rpartition(".")[2]


@public_call
def python_line(node: fx.Node) -> str:
    """Returns "file.py:123", the innermost line outside of torch; "" if unknown."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or node.stack_trace or ""))
    if not frames:
        return ""
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line = (own or frames)[-1]
    return f"{_short(file)}:{line}"


def call_place(node: fx.Node) -> str:
    """Returns "op (node, file.py:123)", for error messages."""
    line = python_line(node)
    return f"{node.target} ({node.name}{f', {line}' if line else ''})"


def _short(file: str) -> str:
    """Returns a file's path relative to its folder on Python's path."""
    folders = [folder for folder in sys.path if folder and file.startswith(f"{folder}/")]
    return file[len(max(folders, key=len)) + 1 :] if folders else file


# Dynamo names them by expressions, such as `L['self']._modules['layers']._parameters['weight']`.

_KEY = "npu_source_name"
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")
_FIRST = re.compile(r"[LG]\['([^']+)'\]")


def source_names(graph_module: fx.GraphModule) -> tuple[str, ...]:
    """Returns the names of a graph's inputs, in order.

    Weights of the compiled module have their names in it. Other values have the expression from the
    Python code, or the node's name without one.
    """
    names = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            names.append(node.name if source is None else _readable(source.name))
    return tuple(names)


def keep_source_names(graph: fx.Graph, names: Sequence[str]) -> None:
    """Records names on the inputs of a graph that AOTAutograd made from dynamo's."""
    for node in graph.nodes:
        # Its description has the index of dynamo's input; copies are dropped.
        index = getattr(node.meta.get("desc"), "idx", None)
        if node.op == "placeholder" and isinstance(index, int) and index < len(names):
            node.meta[_KEY] = names[index]


def note_source_names(graph: fx.Graph, names: Sequence[str]) -> None:
    """Records names on the inputs of a graph with the same inputs as dynamo's."""
    for node, name in zip(graph.find_nodes(op="placeholder"), names, strict=True):
        node.meta[_KEY] = name


def kept_source_name(placeholder: fx.Node) -> str:
    """Returns the recorded name, or else the node's name."""
    return str(placeholder.meta.get(_KEY, placeholder.name))


def _readable(source: str) -> str:
    members = _MEMBER.findall(source)
    root = _FIRST.match(source)
    if not members:
        return _FIRST.sub(r"\1", source)
    # The compiled module is `self` in its forward, and `module` in its caller.
    is_own = root is not None and root[1] in ("self", "module", "fn")
    return ".".join(members if is_own or root is None else [root[1], *members])


_KEPT_FLOAT32 = "npu_keep_float32"


def keep_name(node: fx.Node) -> str:
    """Returns a call's name for keep_float32: the innermost module's path, or the node's name."""
    return module_path(node) or node.name


def mark_kept_float32(graph: fx.Graph, patterns: Sequence[str]) -> frozenset[str]:
    """Marks the calls that match keep_float32; returns the patterns with a match."""
    found = set()
    for node in graph.nodes if patterns else ():
        if node.op == "call_function" and node.target is not operator.getitem:
            name = keep_name(node)
            meant = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
            found.update(meant)
            if meant:
                node.meta[_KEPT_FLOAT32] = True
    return frozenset(found)


def is_kept_float32(node: fx.Node) -> bool:
    """Whether mark_kept_float32 has marked a call."""
    return bool(node.meta.get(_KEPT_FLOAT32))


# Users read the text in dumps, and the cache hashes it.

_SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def graph_text(graph: fx.Graph, *, sources: bool = False) -> str:
    """Returns a graph as text, with the Python lines of its calls if `sources`.

    Each line is `name: dtype[sizes] (strides) device = op(arguments)`, without strides for a
    contiguous tensor.
    """
    return "\n".join(_lines(graph, sources)) + "\n"


def _lines(graph: fx.Graph, sources: bool) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "output":
            yield f"return {_text(node.args[0])}"
            continue
        left = f"{node.name}: {_value(node.meta.get('val'))}"
        if node.op == "placeholder":
            yield f"{left} = input"
        elif node.op == "get_attr":
            yield f"{left} = constant {node.target}"
        else:
            arguments = [_text(value) for value in node.args]
            arguments += [f"{key}={_text(value)}" for key, value in node.kwargs.items()]
            line = f"{left} = {op_name(node.target)}({', '.join(arguments)})"
            place = source_line(node) if sources else None
            yield f"{line}  # {place}" if place else line


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in tuple(value.shape))
        dtype = _SHORT.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{dtype}[{sizes}]{_strides(value)} {value.device.type}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_value(item) for item in value) + ")"
    return type(value).__name__ if isinstance(value, torch.SymInt) else str(value)


def _strides(value: torch.Tensor) -> str:
    if value.layout is not torch.strided:
        return f" {value.layout}"
    expected: Any = 1
    for size, stride in zip(reversed(tuple(value.shape)), reversed(value.stride()), strict=True):
        if str(size) != "1" and str(stride) != str(expected):
            return f" ({', '.join(str(stride) for stride in value.stride())})"
        expected = expected * size
    return ""

"""Where the calls of a graph come from: the torch module and the Python line of each.

Layers of a program bear the names of these calls, so that this leads from a layer's time to the
model's code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import fx

from npu_runtime.public_calls import public_call

__all__ = [
    "call_place",
    "graph_title",
    "module_path",
    "node_origins",
    "node_place",
    "python_line",
    "source_line",
]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent) + "/"

# How dynamo writes the way from the compiled function to a module.
_ROOT = re.compile(r"^L\['self'\]|^L\['\w+'\]|^self\b")
_STEP = re.compile(r"\['?(\w+)'?\]")
_INNER = ("_modules", "_orig_mod")


@public_call
def node_origins(graph: fx.Graph) -> dict[str, tuple[str, str]]:
    """Returns the origin of each call that has one, by the node's name.

    Args:
        graph: of aten calls, with what tracing left in `meta`: "nn_module_stack", "stack_trace".

    Returns:
        The path of the innermost torch module in its root model (the class of the root itself), and
        "file.py:123", the innermost line outside of torch; "" for what is not known.
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
    """Returns `file:line` of the Python code that made a node, or None when it is not recorded."""
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
    """Returns a node's name, and its Python line where that is recorded, for an error's text."""
    line = source_line(node)
    return f"node {node.name}, {line}" if line else f"node {node.name}"


def graph_title(graph: fx.Graph) -> str:
    """Returns "Encoder at model.py:87": the outermost module of its calls, and its first line.

    It is "function" where no call comes from a module.
    """
    stacks = (node.meta.get("nn_module_stack") for node in graph.nodes)
    kinds = [next(iter(stack.values()))[1] for stack in stacks if stack]
    kind = _class_name(kinds[0]) if kinds else "function"
    line = next((text for node in graph.nodes if (text := python_line(node))), "")
    return f"{kind} at {Path(line).name}" if line else kind


def module_path(node: fx.Node) -> str:
    """Returns the path of the innermost module of a call; the class of the root, or "" for none."""
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
    """Returns "file.py:123", the innermost line outside of torch; "" when nothing tells it."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or node.stack_trace or ""))
    if not frames:
        return ""
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, line = (own or frames)[-1]
    return f"{_short(file)}:{line}"


def call_place(node: fx.Node) -> str:
    """Returns "op (node, file.py:123)", by which an error names a call."""
    line = python_line(node)
    return f"{node.target} ({node.name}{f', {line}' if line else ''})"


def _short(file: str) -> str:
    """A file as it is imported: without the folder on Python's path that it was found in."""
    folders = [folder for folder in sys.path if folder and file.startswith(f"{folder}/")]
    return file[len(max(folders, key=len)) + 1 :] if folders else file

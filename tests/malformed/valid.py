"""Valid arguments and receivers by annotation, so that a call has one thing wrong and not all.

What an expression of malformed.drawing calls is here. A receiver that cannot be made is an
UnreachedError: the call is counted as skipped, and its method listed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import threading
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

__all__ = ["UnreachedError", "argument", "closed_file", "instance", "module", "raises", "recursive"]


class UnreachedError(Exception):
    """There is no valid receiver for a method."""


class CallersError(Exception):
    """The error of a callable of the caller."""


def argument(annotation: str, name: str, subject: str) -> Any:
    """A valid value for a parameter."""
    if (maker := _BY_PARAMETER.get((subject, name))) is not None:
        return maker()
    for pattern, maker in _BY_ANNOTATION:
        if re.search(pattern, annotation):
            return maker()
    for pattern, maker in _BY_NAME:
        if re.search(pattern, name):
            return maker()
    return 1


def instance(module: str, name: str) -> Any:
    """A valid receiver for a method of the class."""
    maker = _RECEIVERS.get(f"{module}.{name}") or _RECEIVERS.get(name)
    if maker is not None:
        return maker()
    owner = getattr(importlib.import_module(module), name)
    try:
        parameters = inspect.signature(owner).parameters.values()
    except ValueError:
        raise UnreachedError(name) from None
    given = {
        one.name: argument(inspect.formatannotation(one.annotation), one.name, name)
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    try:
        return owner(**given)
    except Exception as error:
        raise UnreachedError(f"{name}: {error}") from error


def module() -> torch.nn.Module:
    """A layer of four by four."""
    return torch.nn.Linear(4, 4).eval()


def raises(*_: Any, **__: Any) -> NoReturn:
    """A callable with an error that belongs to its caller."""
    raise CallersError("the caller's own")


class number_that_raises:  # it takes the place of a value
    """Says that it is a number, and is none."""

    def __index__(self) -> int:
        raise CallersError("the caller's own")

    __int__ = __float__ = __index__


def recursive() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = [1]
    found.append(found)
    return found


def closed_file() -> Any:
    with Path("text.txt").open("rb") as file:
        return file


@functools.cache
def _openvino_model() -> Path:
    import openvino as ov
    from openvino import opset13 as ops

    entry = ops.parameter([2, 4], ov.Type.f32, name="x")
    result = ops.result(ops.matmul(entry, torch.ones(4, 4).numpy(), False, False))
    path = Path("program.xml").absolute()
    ov.serialize(ov.Model([result], [entry], "valid"), str(path))
    return path


def _model() -> Any:
    from npu_compiler.openvino_core import openvino_core

    return openvino_core().read_model(str(_openvino_model()))


@functools.cache
def program() -> Any:
    """A program of one input, (2, 4)."""
    import npu_runtime

    return npu_runtime.load_program(
        _openvino_model(), name="valid", options={"INFERENCE_PRECISION_HINT": "f32"}
    )


@functools.cache
def _language_model() -> Any:
    import npu_llm

    return npu_llm.load("model", max_context=64)


def _chat() -> Any:
    import npu_llm

    return npu_llm.ChatSession(_language_model())


def _graph_module() -> torch.fx.GraphModule:
    return torch.export.export(module(), (torch.zeros(2, 4),)).run_decompositions().graph_module


def _node() -> torch.fx.Node:
    (node, *_) = (n for n in _graph_module().graph.nodes if n.op == "call_function")
    return node


def _builder() -> Any:
    import npu_compiler

    return npu_compiler.GraphBuilder()


def _built_tensor() -> Any:
    return _builder().parameter((4, 4))


def _loaded() -> Any:
    import npu_compiler

    return npu_compiler.load("exported")


def _wrapper() -> Any:
    import npu_compiler.nn

    return npu_compiler.nn.convert_to_npu_module(module())


def _layer(name: str) -> Any:
    import npu_compiler.nn as nn

    if name == "Conv2d":
        return nn.Conv2d.fromTorch(torch.nn.Conv2d(2, 2, 1))
    return getattr(nn, name).fromTorch(module())


def _context() -> Any:
    """The context that a converter was called with."""
    import npu_compiler.lowering as lowering

    seen: list[Any] = []
    space = torch.library.Library("malformed", "FRAGMENT")
    name = f"seen{threading.get_ident()}{id(space)}"
    space.define(f"{name}(Tensor x) -> Tensor")
    space.impl(name, lambda x: x.clone(), "CompositeExplicitAutograd")
    space.impl(name, lambda x: torch.empty_like(x), "Meta")
    op = getattr(torch.ops.malformed, name).default

    def convert(context: Any, x: Any) -> Any:
        seen.append(context)
        return lowering.custom_op(context, "Relu", [x])

    lowering.register_fx_node_converter(op)(convert)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return op(x)

    graph_module = torch.export.export(Model(), (torch.zeros(2, 4),)).graph_module
    lowering.lower(graph_module)
    return seen[-1]


def _time_estimate() -> Any:
    return importlib.import_module("npu_compiler").estimate(module(), (torch.zeros(2, 4),))


def _profile() -> Any:
    import npu_profiler

    return npu_profiler.NPUProfiler()


def _fields(owner: type) -> Any:
    hints = typing.get_type_hints(owner)
    return owner(
        **{
            one.name: argument(inspect.formatannotation(hints[one.name]), one.name, "")
            for one in dataclasses.fields(owner)
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        }
    )


def _result(path: str) -> Callable[[], Any]:
    home, _, name = path.rpartition(".")
    return lambda: _fields(getattr(importlib.import_module(home), name))


def _module_run() -> Any:
    from npu_ops.debugging import ModuleRun

    layer = module()
    with ModuleRun.of(layer) as run:
        layer(torch.zeros(2, 4))
    return run


def _trace() -> Any:
    from npu_profiler.reading import load_trace

    return load_trace("trace.json")


def _capture() -> Any:
    from npu_ops.debugging.capture_format import find_captures, load_capture

    return load_capture(find_captures("capture")[0])


def _text() -> str:
    return "valid"


_RECEIVERS: dict[str, Callable[[], Any]] = {
    "Program": program,
    "Session": lambda: program().session(),
    "ChatSession": _chat,
    "NPUModelForCausalLM": lambda: _language_model(),
    "ReplyStream": lambda: _chat().stream("Hi", max_new_tokens=2),
    "GraphBuilder": _builder,
    "GraphTensor": _built_tensor,
    "LoadedModel": _loaded,
    "NPUModuleWrapper": _wrapper,
    "npu_compiler.nn.Conv2d": lambda: _layer("Conv2d"),
    "npu_compiler.nn.Linear": lambda: _layer("Linear"),
    "npu_compiler.nn.QuantizedLinear": lambda: _layer("QuantizedLinear"),
    "Context": _context,
    "NPUProfiler": _profile,
    "profile": _profile,
    "Trace": _trace,
    "Explanation": lambda: importlib.import_module("npu_compiler").explain(
        module(), torch.zeros(2, 4)
    ),
    "Readiness": lambda: importlib.import_module("npu_compiler").check(
        module(), (torch.zeros(2, 4),)
    ),
    "TimeEstimate": _time_estimate,
    "TimeBound": lambda: _time_estimate().bound,
    "Operator": lambda: importlib.import_module(
        "npu_ops.op_conformance.interface.operator"
    ).aten_operator("aten.relu.default"),
    "Rules": lambda: importlib.import_module("npu_ops.op_conformance.rules").Rules(),
    "MLP": lambda: importlib.import_module("npu_ops").MLP((2, 4), 4),
    "SDPA": lambda: importlib.import_module("npu_ops").SDPA(*[(1, 2, 4, 4)] * 3, (1, 1, 4, 4)),
    "SimpleSDPA": lambda: importlib.import_module("npu_ops").SimpleSDPA(*[(1, 2, 4, 4)] * 3),
    "Convolution": lambda: importlib.import_module("npu_ops").Convolution(
        (1, 2, 4, 4), (2, 2, 1, 1)
    ),
    "QuantizedWeight": lambda: importlib.import_module("npu_compiler.quantize").quantize_weight(
        torch.ones(4, 32), bits=8
    ),
    "ModuleRun": lambda: _module_run(),
    "ModuleCompare": lambda: importlib.import_module("npu_ops.debugging").ModuleCompare(
        _module_run(), _module_run()
    ),
    "FrozenTensors": lambda: importlib.import_module("npu_runtime").FrozenTensors(
        [0], [torch.zeros(2)]
    ),
    "Recording": lambda: importlib.import_module("npu_profiler").Recording(
        Path("recorded.json"), importlib.import_module("npu_profiler").TraceOptions()
    ),
    "Summary": lambda: importlib.import_module("npu_profiler").Summary(
        1, 1, 1, 1, 0, 0, 0, (), (("aten.mm", 1),), {}
    ),
}

# The first that matches. Annotations as inspect.formatannotation writes them, strings or not.
_BY_ANNOTATION: tuple[tuple[str, Callable[[], Any]], ...] = (
    (r"NPUModelForCausalLM", _language_model),
    (r"GraphModule", _graph_module),
    (r"fx\.Graph", lambda: _graph_module().graph),
    (r"fx\.Node", _node),
    (r"ov\.Model", _model),
    (r"\bContext\b", _context),
    (r"\bCapture\b", _capture),
    (r"OpKey|OpOverload", lambda: torch.ops.aten.relu.default),
    (r"GraphTensor", _built_tensor),
    (r"ModuleRun", _RECEIVERS["ModuleRun"]),
    (r"Program\b", program),
    (r"CompilerConfig", lambda: None),
    (r"Callable\[\[ ?torch.Tensor|Callable\[\.\.\.|Callable", module),
    (r"nn\.Module|modules\.module\.Module", module),
    (r"Iterable\[BenchRecord|Sequence\[Replay", list),
    (r"torch\.Stream|streams\.Stream", lambda: torch.npu.Stream()),
    (r"MemPool", lambda: torch.npu.MemPool()),
    (r"PathLike|Path", lambda: Path("made")),
    (r"[Ss]equence\[[Ss]equence", lambda: [[torch.zeros(2, 4)]]),
    (r"(Sequence|tuple|list|Iterable)\[.*Tensor|Tensor\[\]", lambda: (torch.zeros(2, 4),)),
    (r"(Sequence|tuple|list|Iterable)\[.*int|int\[\]", lambda: (2, 4)),
    (r"(Sequence|tuple|list|Iterable)\[.*str", lambda: ("valid",)),
    (r"(Sequence|tuple|list|Iterable)\b", lambda: ()),
    (r"Mapping|dict", dict),
    (r"Tensor\b", lambda: torch.zeros(4, 4)),
    (r"\bArray\b|ndarray", lambda: torch.zeros(4, 4).numpy()),
    (r"torch\.dtype", lambda: torch.float32),
    (r"torch\.device", lambda: "npu"),
    (r"Generator", lambda: torch.Generator("cpu")),
    (r"\bstr\b|string", _text),
    (r"\bbytes\b", lambda: b"valid"),
    (r"\bbool\b", bool),
    (r"\bfloat\b", lambda: 0.5),
    (r"\bint\b", lambda: 4),
)
_BY_NAME: tuple[tuple[str, Callable[[], Any]], ...] = (
    (r"model|module", module),
    (r"actual|expected|tensor|^x$|input|weight", lambda: torch.zeros(4, 4)),
    (r"tokenizer", object),
    (r"options", dict),
)
_BY_PARAMETER: dict[tuple[str, str], Callable[[], Any]] = {
    ("npu_compiler.load", "path"): lambda: "exported",
    ("npu_compiler.export", "example_inputs"): lambda: (torch.zeros(2, 4),),
    ("npu_compiler.check", "example_inputs"): lambda: (torch.zeros(2, 4),),
    ("npu_compiler.check", "model"): module,
    ("npu_compiler.quantize_model", "dtype"): lambda: "int8",
    ("npu_llm.load", "name_or_path"): lambda: "model",
    ("npu_llm.export", "name_or_path"): lambda: "model",
    ("npu_llm.NPUModelForCausalLM.from_pretrained", "name_or_path"): lambda: "model",
    ("npu_llm.bench.benchmark", "model"): _language_model,
    ("npu_llm.evaluation.evaluate", "model"): _language_model,
    ("npu_llm.evaluation.read_text", "file"): lambda: Path("text.txt"),
    ("npu_llm.ChatSession.restore", "path"): lambda: "text.txt",
    ("npu_ops.debugging.replay_directory", "directory"): lambda: "capture",
    ("npu_ops.debugging.ModuleRun.load", "path"): lambda: "damaged",
    ("npu_ops.debugging.capture_format.load_capture", "folder"): lambda: "capture",
    ("npu_ops.debugging.capture_format.find_captures", "directory"): lambda: "capture",
    ("npu_profiler.reading.load_trace", "path"): lambda: "trace.json",
    ("npu_runtime.load_program", "model"): lambda: _openvino_model(),
    ("npu_runtime.load_program", "name"): _text,
    ("npu_runtime.device_info", "index"): lambda: 0,
    ("npu_ops.op_conformance.interface.operator.aten_operator", "name"): lambda: (
        "aten.relu.default"
    ),
}

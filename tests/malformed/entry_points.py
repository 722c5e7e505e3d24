"""Public entry points, found in the reference pages, signatures and parsers."""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_command.command_parser import parser_of
from npu_command.subcommands import read_command

__all__ = ["Command", "Entry", "Parameter", "commands", "entry_points", "variables"]

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
# Documented on separate pages, or attributes of documented objects.
_FURTHER = ("npu_ops.variants",)
# Documented names that are not called, by a pattern of the whole name.
_NOT_CALLED = {
    r"npu_ops\.(fused|sparse_attention)\.": "formulas in torch: the ops of torch.ops.npu are drawn",
    r"npu_ops\.debugging\.Op\w+\.(take|leave)$": "torch's dispatch calls them",
    r"npu_ops\.debugging\.OpTool(\.|$)": "a base, to be derived from",
    r"npu_ops\.op_conformance\.cases\.case\.(?!Case)": "a case makes its tensors with them",
    r"npu_ops\.arrays\.operator\.[a-z]": "the operators call them",
    r"npu_profiler\.(profile|NPUProfiler)\.(prepare|start|stop)_trace$": (
        "torch's profiler calls them"
    ),
    r"npu_profiler\.reading\.(?!load_trace)": "what load_trace makes",
    r"npu_compiler\.LoadedModel$": "load() makes it",
    r"npu_compiler\.GraphTensor(\.|$)": "GraphBuilder makes it",
    r"npu_llm\.NPUModelForCausalLM(\.sharing)?$": "load() makes it",
    r"npu_llm\.NPUModelFor(?!CausalLM)\w+(\.(?!from_pretrained|export)\w+)?$": (
        "from_pretrained makes it of a checkpoint for its task"
    ),
    r"npu_compiler\.(lowering\.Context|(lowering\.)?custom_op)(\.|$)": "converters call it",
    r"npu_llm\.NPUModelForCausalLM\.prepare_inputs_for_generation$": "transformers calls it",
    r"npu_runtime\.(LayerRecord|Port)$": "a program makes them",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an entry point.

    Attributes:
        annotation: as text; empty where there is none.
        is_required: whether a call must give it.
        is_keyword: whether it is given by name.
        many: "*" or "**" where it takes any number.
    """

    name: str
    annotation: str
    is_required: bool
    is_keyword: bool
    many: str = ""


# Of a native function: anything is drawn for it.
_NATIVE = (Parameter("args", "", False, False, "*"),)


@dataclass(frozen=True)
class Entry:
    """A function, a class that is called, or a method of one.

    Attributes:
        package: the distribution, such as npu-ops.
        module: where it is reached.
        name: in the module.
        method: of the class of that name; empty for the name itself.
        is_static: whether the method is called on the class.
    """

    package: str
    module: str
    name: str
    parameters: tuple[Parameter, ...]
    method: str = ""
    is_static: bool = False

    @property
    def is_native(self) -> bool:
        """Whether Python does not know its parameters."""
        return self.parameters == _NATIVE

    def __str__(self) -> str:
        return ".".join(part for part in (self.module, self.name, self.method) if part)


@dataclass(frozen=True)
class Command:
    """A subcommand with the actions of its parser."""

    package: str
    name: str
    actions: tuple[argparse.Action, ...] = field(compare=False, default=())

    def __str__(self) -> str:
        return f"{self.package} {self.name}"


def entry_points() -> list[Entry]:
    """The callables in `__all__` of each module that a reference page documents."""
    found = {str(entry): entry for module in _modules() for entry in _of_module(module)}
    found |= {str(entry): entry for entry in _operators()}
    return [found[key] for key in sorted(found) if not any(re.match(p, key) for p in _NOT_CALLED)]


def _modules() -> Iterator[str]:
    pages = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("npu-*.md")))
    names = [*re.findall(r"^::: (\S+)", pages, re.M), *_FURTHER]
    for name in names:
        yield name
        module = importlib.import_module(name)
        for inner in getattr(module, "__all__", ()):
            value = getattr(module, inner)
            if isinstance(value, types.ModuleType) and hasattr(value, "__all__"):
                yield value.__name__


def _of_module(name: str) -> Iterator[Entry]:
    module = importlib.import_module(name)
    package = name.partition(".")[0].replace("_", "-")
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if isinstance(value, types.ModuleType | types.GenericAlias) or not callable(value):
            continue
        if not inspect.isclass(value):
            if str(getattr(value, "__module__", "")).startswith("npu_"):
                yield Entry(package, name, public, _parameters(value))
        elif not issubclass(value, BaseException | enum.Enum):
            yield Entry(package, name, public, _parameters(value))
            yield from _methods(package, name, public, value)


def _methods(package: str, module: str, public: str, owner: type) -> Iterator[Entry]:
    ours = [base for base in owner.__mro__ if base.__module__.startswith("npu_")]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in sorted(names):
        raw = inspect.getattr_static(owner, name)
        value = getattr(owner, name, None)
        if not callable(value) or isinstance(raw, property) or inspect.isclass(value):
            continue
        is_static = isinstance(raw, staticmethod | classmethod)
        parameters = _parameters(value)
        if not is_static and parameters != _NATIVE:
            parameters = parameters[1:]
        yield Entry(package, module, public, parameters, name, is_static)


def _operators() -> Iterator[Entry]:
    """The ops of torch.ops.npu: their schemas have the types."""
    import torch

    for schema in torch._C._jit_get_all_schemas():
        space, _, op = schema.name.partition("::")
        if space != "npu" or op.startswith("_") or schema.overload_name:
            continue
        parameters = tuple(
            Parameter(one.name, str(one.type), not one.has_default_value(), one.kwarg_only)
            for one in schema.arguments
        )
        yield Entry("npu-ops", "torch.ops.npu", op, parameters)


def _parameters(function: Any) -> tuple[Parameter, ...]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return _NATIVE
    kinds = inspect.Parameter
    many = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    return tuple(
        Parameter(
            one.name,
            "" if one.annotation is kinds.empty else inspect.formatannotation(one.annotation),
            one.default is kinds.empty and one.kind not in many,
            one.kind is kinds.KEYWORD_ONLY,
            many.get(one.kind, ""),
        )
        for one in signature.parameters.values()
    )


def commands() -> list[Command]:
    """Each subcommand of the five commands, with the options that its parser takes."""
    packages = ("npu_runtime", "npu_ops", "npu_compiler", "npu_llm", "npu_profiler")
    tables = [read_command(package) for package in packages]
    return [
        Command(table.name, name, tuple(parser_of(row.module)._actions))
        for table in tables
        for name, row in table.subcommands.items()
    ]


def variables() -> list[str]:
    """The environment variables of ours that the reference page lists."""
    ours = (REFERENCE / "environment.md").read_text().split("Variables of other projects")[0]
    names = re.findall(r"^\| `([A-Z<>_]+)` \|", ours, re.M)
    return [name.replace("<TOOL>", "OBSERVE") for name in names]

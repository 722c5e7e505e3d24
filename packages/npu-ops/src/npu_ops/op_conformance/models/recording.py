"""Records the ops of networks' training steps on the CPU as data, and reads them as cases.

A call is stored once for all networks, as shapes, dtypes, strides, numbers, and the range of its
integers, so that indices are valid. ``python -m npu_ops.op_conformance.record`` writes them to
`recorded.json` in this folder.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from npu_ops.errors import ConformanceError
from npu_ops.op_conformance.cases.case import Case, make_tensor, parse_tensor

__all__ = [
    "NETWORKS",
    "RECORDED",
    "Recording",
    "known_networks",
    "model_cases",
    "model_names",
    "record_network",
]


RECORDED = Path(__file__).with_name("recorded.json")


@functools.cache
def model_cases() -> dict[str, Case]:
    """Returns all recorded calls by id, in file order."""
    cases = {}
    for op, calls in _read()["calls"].items():
        for dtype, arguments, numbers in calls:
            models = tuple(model_names()[number] for number in numbers)
            case = Case("models", op, dtype, "recorded", arguments, models=models)
            cases[case.id] = case
    return cases


@functools.cache
def model_names() -> tuple[str, ...]:
    """Returns the networks, in the order of their numbers in the file."""
    return tuple(_read()["networks"])


@functools.cache
def _read() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return table


NETWORKS = Path(__file__).with_name("networks.toml")
_MOST_ELEMENTS = 3_000_000  # maximum elements of a call's tensors together, to keep cases small
_DTYPE = "float32"  # dtype of a case without one in its tensors

# Calls that do not test a device's arithmetic, with reasons.
_LEFT_OUT = {
    "aten._grouped_mm": "its offsets ascend to the number of rows, which a range does not contain",
    "aten._local_scalar_dense": "a number for Python, not a tensor",
    "aten._unsafe_view": "a view",
    "aten.clone": "a copy; the interface has its layouts",
    "aten.copy_": "a copy; the interface has its layouts and dtypes",
    "aten.detach": "a view",
    "aten.empty*": "whatever the memory held",
    "aten.new_empty*": "whatever the memory held",
    "aten.normal_": "made while a model is built",
    "aten.uniform_": "made while a model is built",
    "aten.item": "a number for Python, not a tensor",
}
_KEYWORDS_LEFT_OUT = ("device", "generator", "layout", "pin_memory")


@dataclass
class Recording:
    """Calls of several networks.

    Attributes:
        networks: names of the networks, in the order of their numbers.
        calls: op -> call as JSON -> numbers of the networks with it.
        left_out: reason for leaving out calls -> number of calls.
    """

    networks: list[str] = field(default_factory=list)
    calls: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, op: str, arguments: dict[str, Any]) -> None:
        """Adds a call of the last network."""
        callers = self.calls.setdefault(op, {}).setdefault(json.dumps(arguments), [])
        number = len(self.networks) - 1
        if number not in callers:
            callers.append(number)

    def text(self) -> str:
        """Returns the text of the file: one line per call, for readable diffs."""
        ops = []
        for op, calls in sorted(self.calls.items()):
            rows = ",\n".join(
                f'["{_DTYPE}",{call},{json.dumps(callers)}]'
                for call, callers in sorted(calls.items())
            )
            ops.append(f'"{op}":[\n{rows}]')
        head = f'"networks":{json.dumps(self.networks)},\n'
        left = f'"left_out":{json.dumps(dict(sorted(self.left_out.items())))},\n'
        return "{" + head + left + '"calls":{\n' + ",\n".join(ops) + "}}\n"


def known_networks() -> dict[str, dict[str, Any]]:
    """Returns the entries of networks.toml by name."""
    table = tomllib.loads(NETWORKS.read_text(encoding="utf-8"))
    usual = {"inputs": {"input_ids": table["defaults"]["tokens"]}, "options": {}}
    return {name: usual | row for name, row in sorted(table["networks"].items())}


def record_network(recording: Recording, name: str, row: dict[str, Any]) -> None:
    """Runs a forward and backward step of a network and adds its calls.

    Raises:
        ConformanceError: [network-unknown] if this release of transformers lacks the class.
    """
    import transformers

    kind = getattr(transformers, row["model"], None)
    if kind is None:
        raise ConformanceError(
            f"{name} must be a class of transformers {transformers.__version__}, got "
            f"{row['model']!r}. Correct models/networks.toml.",
            code="network-unknown",
        )
    configuration = kind.config_class
    if "config" in row:
        configuration = getattr(transformers, row["config"])
    torch.manual_seed(0)
    model = kind._from_config(configuration(**row["options"]), attn_implementation="eager")
    model.eval()
    generator = torch.Generator().manual_seed(0)
    inputs = {
        key: make_tensor(parse_tensor(text), torch.float32, generator)
        for key, text in row["inputs"].items()
    }
    recording.networks.append(name)
    with _Recorder(recording):
        outputs = model(**inputs)
        floats = [
            leaf
            for leaf in tree_leaves(tuple(outputs.values()))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        torch.autograd.backward([leaf.float().square().mean() for leaf in floats])


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        reason = _reason(func, [*tree_leaves(args), *tree_leaves(keywords)])
        if reason:
            self._recording.left_out[reason] += 1
        else:
            names = [one.name for one in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | keywords
            kept = {key: tree_map(_word, value) for key, value in given.items()}
            for key in _KEYWORDS_LEFT_OUT:
                kept.pop(key, None)
            self._recording.add(str(func), kept)
        return func(*args, **keywords)


def _reason(func: Any, leaves: Iterable[Any]) -> str:
    """Returns the reason to leave out a call; empty if it is kept."""
    name = str(func)
    for pattern, reason in _LEFT_OUT.items():
        beginning = pattern.removesuffix("*")
        if name.startswith(beginning if pattern.endswith("*") else f"{pattern}."):
            return reason
    if not name.startswith("aten."):
        return "not an op of aten"
    if any(one.alias_info and not one.alias_info.is_write for one in func._schema.returns):
        return "a view"
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return "made of no tensor"
    if sum(tensor.numel() for tensor in tensors) > _MOST_ELEMENTS:
        return f"more than {_MOST_ELEMENTS:,} elements"
    return ""


def _word(leaf: Any) -> Any:
    """Returns a leaf of a call's arguments in a case's form."""
    if isinstance(leaf, torch.Tensor):
        return _line(leaf)
    if isinstance(leaf, torch.dtype | torch.memory_format):
        return str(leaf)
    return leaf


def _line(tensor: torch.Tensor) -> str:
    words = [f"[{','.join(map(str, tensor.shape))}]"]
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != _DTYPE:
        words.append(dtype)
    values = tensor.detach()
    if tensor.numel() and not dtype.startswith(("bool", "complex")):
        low = values.min()
        if not tensor.is_floating_point():
            words.append(f"{int(low)}..{int(values.max())}")
        elif float(low) >= 0:  # non-negative, as for a variance: a root or a logarithm may follow
            words.append("0.0625..1")
    if not tensor.is_contiguous():
        words.append(f"@{','.join(map(str, tensor.stride()))}")
    return " ".join(words)

"""Weights that stay in the checkpoint's files until they are needed.

A model is traced and lowered with float32 parameters that have addresses but no memory behind them.
Their values are mapped from the files in the checkpoint's dtype, or computed from integers there.
They are read, converted and released one weight at a time, while weights are compressed or the
program is written.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

import torch
from torch import fx

from npu_compiler.programs.load import write_model
from npu_compiler.quantize import QuantizedWeight
from npu_llm.gguf.weights import Blocks, Weight

__all__ = ["StoredWeight", "StreamedWeights"]

_PAGE_BYTES = mmap.PAGESIZE
# Linux: reserves no memory. Python has the constant since 3.13.
_MAP_NORESERVE = 0x4000
# Advises the system to page out memory that can be read again; unlike other advice, without data
# loss.
_MADV_PAGEOUT = 21
# Smaller weights are read whole, because reading parts gains nothing.
_SMALL = 4096
_CHUNK = 1 << 22
_DTYPES = {"f32": torch.float32, "f16": torch.float16}


class StoredWeight(Protocol):
    """A weight with values that are computed from its form in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the values."""

    def values(self) -> torch.Tensor:
        """Computes the values, in a float dtype."""

    def integers(
        self, *, is_transposed: bool = False, index: int | None = None
    ) -> QuantizedWeight | None:
        """Returns the integers whose products with scales are the values; None if there are none.

        They are (outputs, groups, inputs / groups), of 8 bits in one group or of 4 bits in groups
        of 32, 64 or 128.

        Args:
            is_transposed: whether the weight's values are (inputs, outputs).
            index: index of one matrix, if the weight has several.
        """

    def blocks(self) -> Blocks | None:
        """Returns the rows as blocks of a GGUF type; None if there are none."""


class StreamedWeights:
    """The weights of a model by the addresses of their placeholders; empty if all are in memory."""

    def __init__(self) -> None:
        self._stored: dict[int, torch.Tensor | StoredWeight] = {}
        self._forms: dict[int, StoredWeight] = {}
        self._placeholders: dict[int, torch.Tensor] = {}
        self._latest: tuple[int, torch.Tensor] | None = None

    def use_placeholders(
        self, model: torch.nn.Module, stored: Mapping[str, torch.Tensor | StoredWeight]
    ) -> None:
        """Replaces a model's parameters by placeholders without memory.

        Args:
            model: its parameters become float32 placeholders of the same shapes.
            stored: the values of each parameter by name, in any float dtype.
        """
        made: dict[int, torch.nn.Parameter] = {}
        for module_name, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                if id(parameter) not in made:
                    value = stored[f"{module_name}.{name}".lstrip(".")]
                    made[id(parameter)] = self.placeholder(value)
                module._parameters[name] = made[id(parameter)]

    def placeholder(self, value: torch.Tensor | StoredWeight) -> torch.nn.Parameter:
        """Returns a float32 parameter that takes no memory until it is written to.

        Args:
            value: its values, in any float dtype.
        """
        parameter = self._placeholder(value)
        if not isinstance(value, torch.Tensor):
            self._forms[parameter.data_ptr()] = value
        return parameter

    def _placeholder(self, value: torch.Tensor | StoredWeight) -> torch.nn.Parameter:
        elements = math.prod(value.shape)
        if isinstance(value, Weight) and value.is_as_stored:
            value = value.values()
        if isinstance(value, torch.Tensor):
            value = value.detach().contiguous()
        if elements < _SMALL or (isinstance(value, torch.Tensor) and value.dtype is torch.float32):
            return torch.nn.Parameter(_values(value).float(), requires_grad=False)
        # Zeros: the system shares their pages until they are written.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        memory = mmap.mmap(-1, elements * 4, flags=flags)
        placeholder = torch.frombuffer(memory, dtype=torch.float32).view(value.shape)
        self._stored[placeholder.data_ptr()] = value
        self._placeholders[placeholder.data_ptr()] = placeholder
        return torch.nn.Parameter(placeholder, requires_grad=False)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the values of a parameter, or of its transpose; valid until the next read.

        Args:
            tensor: a parameter, a view of all of it or its transpose, or another tensor.

        Returns:
            A tensor of the same shape, in the checkpoint's dtype; other tensors unchanged.
        """
        address = tensor.data_ptr()
        stored = self._stored.get(address)
        if stored is None:
            return tensor
        if self._latest is None or self._latest[0] != address:
            self._let_go()
            self._latest = address, _values(stored)
        values = self._latest[1]
        return values.view(tensor.shape) if tensor.is_contiguous() else values.t()

    def integers(
        self, tensor: torch.Tensor, *, is_transposed: bool = False, index: int | None = None
    ) -> QuantizedWeight | None:
        """Returns a parameter's integers (outputs, inputs) from a file; None if there are none.

        Args:
            tensor: a parameter.
            is_transposed: whether the parameter is (inputs, outputs).
            index: index of one matrix, if the parameter has several.
        """
        form = self._forms.get(tensor.data_ptr())
        return None if form is None else form.integers(is_transposed=is_transposed, index=index)

    def blocks(self, tensor: torch.Tensor) -> Blocks | None:
        """Returns a parameter's quantized rows as blocks of a GGUF type; None if it has none.

        Args:
            tensor: a parameter, or a view of all of it.
        """
        form = self._forms.get(tensor.data_ptr())
        return None if form is None else form.blocks()

    def values(self) -> Iterator[torch.Tensor]:
        """Yields each weight that is not in memory yet, in the checkpoint's dtype."""
        for stored in self._stored.values():
            yield _values(stored)
            _page_out(stored)

    def run(self, graph_module: fx.GraphModule, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs a traced graph with the real weights, each read when a call needs it."""
        return tuple(_Reader(graph_module, self).run(*inputs))

    def fill(self) -> None:
        """Reads all weights into memory."""
        for address, stored in self._stored.items():
            self._placeholders[address].copy_(_values(stored))
            _page_out(stored)
        self._stored.clear()
        self._latest = None

    def write(self, model: Any, path: Path, *, half: bool) -> None:
        """Writes a model as IR, like npu_compiler.programs.load.write_model.

        Args:
            model: an openvino.Model; its constants may read the placeholders.
            path: the .xml file.
            half: whether to store float32 constants as float16.

        Raises:
            OSError: if the disk is full.
        """
        self._let_go()
        found = self._constants(model)
        for number, address in enumerate(sorted(set(found.values()))):
            # OpenVINO writes equal constants once.
            first = self._placeholders[address].view(-1)
            first[0], first[1] = float(number % 1000 + 1), float(number // 1000)
        try:
            write_model(model, path, half=half)
        except RuntimeError as failure:
            raise _without_room(path, str(failure)) from failure
        places = _places(path)
        weights = path.with_suffix(".bin")
        if weights.stat().st_size < max((place[1] + place[2] for place in places), default=0):
            raise _without_room(path, "a truncated file")
        with weights.open("r+b") as file:
            for name, offset, size, kind in places:
                name = name.removesuffix("_compressed")
                if name in found:
                    stored = self._stored[found[name]]
                    self._write_weight(file.fileno(), stored, offset, size, kind)

    def _constants(self, model: Any) -> dict[str, int]:
        """Returns the names of the constants that read placeholders, and their addresses."""
        found: dict[str, int] = {}
        for node in model.get_ordered_ops():
            if node.get_type_name() != "Constant":
                continue
            if node.get_output_element_type(0).get_type_name() != "f32":
                continue
            address = int(node.get_tensor_view().data.ctypes.data)
            if address in self._stored:
                name = f"weight_{len(found)}"
                node.set_friendly_name(name)
                found[name] = address
        return found

    def _write_weight(
        self,
        file: int,
        stored: torch.Tensor | StoredWeight,
        offset: int,
        size: int,
        kind: str,
    ) -> None:
        dtype = _DTYPES[kind]
        flat = _values(stored).view(-1)
        assert flat.numel() * dtype.itemsize == size, "a constant has its weight's size"
        for first in range(0, flat.numel(), _CHUNK):
            part = flat[first : first + _CHUNK].to(dtype)
            content = memoryview(part.view(torch.uint8).numpy().tobytes())
            at = offset + first * dtype.itemsize
            while content:
                written = os.pwrite(file, content, at)
                content, at = content[written:], at + written
        _page_out(stored)

    def _let_go(self) -> None:
        if self._latest is not None:
            _page_out(self._stored[self._latest[0]])
            self._latest = None


class _Reader(fx.Interpreter):
    """Runs a graph, and releases values after their last use."""

    def __init__(self, graph_module: fx.GraphModule, weights: StreamedWeights) -> None:
        super().__init__(graph_module)
        self._weights = weights

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.Tensor):
            return self._weights.read(found).to(found.dtype)
        return found


def _places(path: Path) -> list[tuple[str, int, int, str]]:
    """Returns name, offset, bytes and type of each constant of an IR."""
    places = []
    for _, element in ElementTree.iterparse(path):
        if element.tag == "layer" and element.get("type") == "Const":
            data = element.find("data")
            if data is not None:
                places.append(
                    (
                        element.get("name", ""),
                        int(data.get("offset", 0)),
                        int(data.get("size", 0)),
                        data.get("element_type", ""),
                    )
                )
            element.clear()
    return places


def _without_room(path: Path, reason: str) -> OSError:
    line = (reason.strip().splitlines() or ["no reason given"])[-1]
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    code = errno.ENOSPC if free < (1 << 24) else errno.EIO
    return OSError(code, f"{os.strerror(code)} ({line})")


_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _values(stored: torch.Tensor | StoredWeight) -> torch.Tensor:
    return stored if isinstance(stored, torch.Tensor) else stored.values()


def _page_out(tensor: torch.Tensor | StoredWeight) -> None:
    """Hints to the system to reclaim a mapped tensor's pages."""
    if not isinstance(tensor, torch.Tensor):
        return
    start = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if end > start:
        _libc.madvise(start, end - start, _MADV_PAGEOUT)

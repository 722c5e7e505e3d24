"""NNFactory: a graph built call by call, with that library's dtypes, methods and ways to run.

Preserved: inputs are float16 by default; uint8 means packed 4-bit integers; `gelu` is the tanh
approximation; integer products divide by the square root of their inputs. Unlike there, a run
returns new arrays, and reads the given weights even if their `op_id` is known.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import torch

import npu_runtime
from npu_compiler import GraphBuilder, GraphTensor
from npu_compiler.graph_builder.recording import pass_over
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs import compile_options
from npu_llm.compat.intel_npu_acceleration_library.backend.tensor import (
    FACTORIES,
    GraphInput,
    Tensor,
    fitted,
    flattened,
    unpacked,
    without_ignored_mask,
)
from npu_llm.compat.intel_npu_acceleration_library.dtypes import dtype_of, float64, int4, warn_once
from npu_llm.errors import OptionError

__all__ = ["NNFactory"]

pass_over(__name__.partition(".backend.")[0])


class NNFactory(GraphBuilder):
    """A graph of Tensors, compiled to one program and run on arrays or tensors.

    Attributes:
        elapsed: milliseconds of the last run; None before.
        out: arrays of the last run.
    """

    def __init__(self, profile: bool = False, device: str = "NPU") -> None:
        """Starts an empty graph.

        Args:
            profile: False; layer times come from `npu-profiler trace`.
            device: "NPU" or "AUTO" for the device in use, or its name.

        Raises:
            OptionError: [compat-profile], or [compat-device] for a device that is not in use.
        """
        super().__init__(tensor_class=Tensor)
        FACTORIES[self._recording] = weakref.ref(self)
        if profile:
            raise OptionError(
                f"{type(self).__name__}: `profile` must be False, got True, but no profiling.json "
                "is written here. Run the program under `npu-profiler trace`, which records "
                "times.",
                code="compat-profile",
            )
        if device not in ("NPU", "AUTO") and device != npu_runtime.device_info(0).device:
            raise OptionError(
                f"{type(self).__name__}: `device` must be NPU, AUTO or the one in use, "
                f"{npu_runtime.device_info(0).device}, got {device}. Set NPU_DEVICE={device} when "
                "the program starts.",
                code="compat-device",
            )
        self.device = device
        self.elapsed: float | None = None
        self.out: list[np.ndarray[Any, Any]] = []
        self._inputs: list[GraphInput] = []
        self._set: dict[int, Any] = {}
        self._named_weights: dict[str, tuple[Any, ...]] = {}

    def parameter(self, shape: Sequence[int], dtype: Any = np.float16) -> Tensor:
        """Adds an input.

        Args:
            shape: positive sizes.
            dtype: a dtype of torch, numpy or this library. int4 and uint8 are given as bytes with
                two values each; float64 is computed in float32.

        Raises:
            OptionError: [unknown-dtype], or [graph-array] for invalid sizes.
            npu_compiler.errors.GraphError: [graph-parameter] for sizes that are not positive.
        """
        wanted = dtype_of(dtype)
        sizes = _sizes(shape)
        if wanted == int4:
            count = math.prod(sizes)
            made = self._input(GraphInput(((count + 1) // 2,), torch.uint8, is_packed=True))
            made = self._call(lambda packed: unpacked(packed)[:count].reshape(sizes), (made,))
        else:
            kept = torch.float32 if wanted == float64 else wanted.torch_dtype
            made = self._input(GraphInput(sizes, kept))
        tensor = cast("Tensor", made)
        tensor.declared = wanted if wanted in (int4, float64) else None
        return tensor

    def constant(self, data: Any) -> Tensor:
        """Adds a constant: a tensor, an array, or numbers, of which one has shape (1,).

        Integers are int64, others float32; None stays None.
        """
        if data is None or isinstance(data, GraphTensor):
            return cast("Tensor", data)
        if isinstance(data, int | float):
            data = [data]
        if isinstance(data, list | tuple):
            is_whole = all(isinstance(number, int) for number in data)
            # GraphBuilder rejects values that are not numbers.
            with contextlib.suppress(TypeError, ValueError):
                data = np.array(data, np.int64 if is_whole else np.float32)
        return cast("Tensor", super().constant(data))

    def to(self, tensor: Any, dtype: Any) -> Tensor:
        """Casts to a dtype of torch, numpy or this library."""
        return cast("Tensor", super().to(tensor, dtype_of(dtype).torch_dtype))

    def linear(
        self,
        input_node: Any,
        output_channels: int,
        input_channels: int,
        bias: bool = False,
        act_dtype: Any = np.float16,
        wt_dtype: Any = np.float16,
    ) -> Any:
        """Adds a layer with weights as further inputs: weight, scales for integers, bias.

        With integers the product is input @ (weight / sqrt(input_channels)).T * scales.

        Args:
            input_node: (..., input_channels).
            output_channels: rows of the weight.
            input_channels: columns of the weight.
            bias: whether there is a bias, (output_channels,).
            act_dtype: dtype of the input, the scales and the bias.
            wt_dtype: dtype of the weight; for integers int8, or uint8 for 4 bits.
        """
        if not dtype_of(wt_dtype).is_floating_point:
            warn_once("scale-root")
        return self._linear(
            input_node, (output_channels, input_channels), bias, act_dtype, wt_dtype
        )

    def convolution(
        self,
        input_node: Any,
        weights_node: Any,
        bias: Any = None,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        act_dtype: Any = np.float16,
        n_spatial_dims: int = 2,
    ) -> Any:
        """Convolves input_node (batch, channels, ...).

        Args:
            input_node: tensor with n_spatial_dims dimensions after the channels.
            weights_node: (outputs, inputs / groups, ...), or with the groups as an additional first
                axis.
            bias: (outputs,), or None.
            strides: one for all dimensions, or one for each.
            padding: one for all dimensions, or one for each.
            dilation: one for all dimensions, or one for each.
            groups: number of independent channel groups.
            act_dtype: dtype to which integer weights are cast.
            n_spatial_dims: ignored; derived from the input.
        """
        weights: Any = self.constant(weights_node)
        if not dtype_of(weights.dtype).is_floating_point:
            weights = self.to(weights, act_dtype)
        if weights.dim() == input_node.dim() + 1:
            weights = self.reshape(weights, (-1, *weights.shape[2:]))
        offset = None if bias is None else self.reshape(self.constant(bias), (-1,))
        return super().convolution(input_node, weights, offset, strides, padding, dilation, groups)

    def concat(self, *tensors: Any, axis: int | None = None) -> Any:
        """Concatenates tensors along an axis, which may also be the last positional argument."""
        parts = list(tensors)
        along = parts.pop() if axis is None else axis
        return super().concat(*parts, axis=along)

    def gelu(self, x: Any) -> Any:
        """GELU, approximated by tanh; `gelu_erf` is exact."""
        return self._call(torch.nn.functional.gelu, (x,), {"approximate": "tanh"})

    def avg_pooling(self, *args: Any, n_spatial_dims: int = 2, **named: Any) -> Any:
        """Average pooling as in GraphBuilder; n_spatial_dims is derived from the input."""
        if named.pop("divisor_override", None) or any(args[6:7]):
            raise OptionError(
                "NNFactory.avg_pooling: `divisor_override` must be None, got a number. Multiply "
                "the result.",
                code="graph-call",
            )
        return super().avg_pooling(*args[:6], **named)

    def max_pooling(self, *args: Any, n_spatial_dims: int = 2, **named: Any) -> Any:
        """Max pooling as in GraphBuilder; n_spatial_dims is derived from the input."""
        return super().max_pooling(*args[:5], **named)

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False
    ) -> Any:
        """Computes attention; is_causal ignores the mask."""
        given = (query, key, value, attn_mask, 0.0, is_causal)
        function = torch.nn.functional.scaled_dot_product_attention
        return self._call(function, (), without_ignored_mask(given, {}))

    def scaled_dot_product_attention_simple(
        self, query: Any, key: Any, value: Any, is_causal: bool = False
    ) -> Any:
        """Computes attention without a mask."""
        return self.scaled_dot_product_attention(query, key, value, None, is_causal)

    def get_tensor_shape(self, node: Tensor) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(node.shape)

    def get_tensor_dtype(self, node: Tensor) -> Any:
        """Returns the numpy dtype of a tensor; the name of bfloat16, which numpy does not have."""
        name = str(node._fake.dtype).removeprefix("torch.")
        return name if name == "bfloat16" else np.dtype(name).type

    def compile(self, *outputs: GraphTensor) -> NNFactory:
        """Compiles the program; its outputs are the unused tensors, in order."""
        super().compile(*(outputs or self._ends()))
        return self

    def set_input_tensor(self, tensor: np.ndarray[Any, Any], idx: int) -> None:
        """Sets an input for later runs that omit it.

        Args:
            tensor: a tensor with the input's shape and dtype.
            idx: index of the input.

        Raises:
            OptionError: [graph-array] for an invalid index.
        """
        if not 0 <= idx < len(self._inputs):
            raise OptionError(
                f"NNFactory.set_input_tensor: `idx` must be from 0 to {len(self._inputs) - 1}, "
                f"got {idx}. Count the parameters in creation order.",
                code="graph-array",
            )
        self._set[idx] = tensor

    def run(self, X: Any, *weights: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Runs the graph on arrays.

        Args:
            X: the first input.
            weights: the other inputs; a tuple of integers and scales counts as two, or as one
                product.
            kwargs: op_id, a name under which weights are cached for runs without any; others are
                ignored.

        Returns:
            An array, or a list of them.

        Raises:
            OptionError: [graph-array] for an input of another shape or dtype.
            npu_compiler.errors.GraphError: [graph-input] for too few or too many inputs.
        """
        results = self._run((X, *weights), kwargs.get("op_id"))
        self.out = [(r.float() if r.dtype is torch.bfloat16 else r).numpy() for r in results]
        return self.out[0] if len(self.out) == 1 else self.out

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph on tensors, and returns a tensor or a list of them."""
        results = self._run(args, kwargs.get("op_id"))
        return results[0] if len(results) == 1 else results

    def save(self, path: str) -> None:
        """Writes the graph in OpenVINO's format.

        Args:
            path: an .xml file; the constants are written next to it as .bin.

        Raises:
            OptionError: [output-file] for another extension, or a path that is not writable.
        """
        if Path(path).suffix != ".xml":
            raise _not_writable("save", path, "a name that ends with .xml")
        model = self.to_openvino(*self._ends())
        try:
            ov.serialize(model, str(path), str(Path(path).with_suffix(".bin")))
        except RuntimeError as failure:
            raise _not_writable("save", path, "a file in a writable folder") from failure

    def saveCompiledModel(self, path: str) -> None:
        """Writes the program compiled for the device in use.

        Args:
            path: any file; its folder is created.

        Raises:
            OptionError: [output-file] if it cannot be written.
            ProgramError: [program-load] if the device does not support the program.
        """
        model = self.to_openvino(*self._ends())
        device = npu_runtime.device_info(0).device
        stream = io.BytesIO()
        try:
            compiled = openvino_core().compile_model(model, device, compile_options("float16"))
            compiled.export_model(stream)
        except RuntimeError as refused:
            raise npu_runtime.ProgramError(
                f"`saveCompiledModel` must be a program that {device} supports; OpenVINO reports: "
                f"{str(refused).strip()} Write the model with `save`, for another device.",
                code="program-load",
            ) from refused
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)  # see `save`
            Path(path).write_bytes(stream.getvalue())
        except OSError as failure:
            raise _not_writable(
                "saveCompiledModel", path, "a file in a writable folder"
            ) from failure

    def _input(self, given: GraphInput) -> GraphTensor:
        made = super().parameter(given.shape, given.dtype)
        self._inputs.append(given)
        return made

    def _linear(
        self, x: Any, sizes: tuple[int, int], bias: Any, act_dtype: Any, wt_dtype: Any
    ) -> Any:
        given = self.to(x, act_dtype)
        weight: Any = self.parameter(sizes, wt_dtype)
        weight, is_whole = self.to(weight, act_dtype), not weight.dtype.is_floating_point
        if is_whole:
            # Integers times inputs would exceed float16's range.
            weight = weight / math.sqrt(sizes[1])
        product: Any = self.matmul(given, weight)
        if is_whole:
            product = product * self.parameter((1, sizes[0]), act_dtype)
        return product + self.parameter((sizes[0],), act_dtype) if bias else product

    def _ends(self) -> tuple[GraphTensor, ...]:
        return tuple(self._recording.unread() or self._recording.parameters)

    def _run(self, given: tuple[Any, ...], op_id: str | None) -> list[torch.Tensor]:
        if op_id is not None:
            if len(given) > 1:
                self._named_weights[op_id] = given[1:]
            given = (*given[:1], *self._named_weights.get(op_id, ()))
        tensors: list[Any] = list(flattened(given, self._inputs))
        missing = range(len(tensors), len(self._inputs))
        tensors += flattened([self._set[at] for at in missing if at in self._set], ())
        pairs = enumerate(zip(tensors, self._inputs, strict=False))
        ready = [fitted(tensor, at, place=place) for place, (tensor, at) in pairs]
        start = time.perf_counter()
        results = GraphBuilder.run(self, *ready, *tensors[len(ready) :])
        self.elapsed = (time.perf_counter() - start) * 1e3
        return list(results) if isinstance(results, tuple) else [results]


def _sizes(shape: Any) -> tuple[int, ...]:
    """Returns sizes as ints; programs pass numpy integers and integral floats."""
    try:
        return tuple(int(size) for size in shape)
    except (TypeError, ValueError) as failure:
        raise OptionError(
            f"NNFactory.parameter: `shape` must be a list of positive integers, got {shape!r}. "
            "Pass one size per axis.",
            code="graph-array",
        ) from failure


def _not_writable(method: str, path: Any, wanted: str) -> OptionError:
    return OptionError(
        f"NNFactory.{method}: `path` must be {wanted}, got {str(path)!r}. Pass another.",
        code="output-file",
    )

"""Operators on torch tensors, with one cached program per size, and the NPU's driver version.

The 256 most recently used programs are cached. Integer products divide by the square root of the
inputs, so that callers multiply `scale` by it.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import npu_runtime
from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.backend.operators import MatMul, QMatMul
from npu_llm.compat.intel_npu_acceleration_library.dtypes import warn_once
from npu_llm.errors import OptionError
from npu_runtime.errors import DeviceError

__all__ = ["clear_cache", "get_driver_version", "npu_available", "run_factory", "run_matmul"]

_MOST_PROGRAMS = 256
_programs: OrderedDict[Hashable, NNFactory] = OrderedDict()


def clear_cache() -> None:
    """Clears the program cache."""
    _programs.clear()


def run_matmul(
    x: torch.Tensor,
    weights: torch.Tensor,
    scale: torch.Tensor | None = None,
    op_id: str | None = None,
) -> torch.Tensor:
    """Multiplies x by the transpose of weights, in float16.

    Args:
        x: (..., inputs) of a float dtype.
        weights: (..., inputs) of a float dtype or int8; or (..., inputs / 2) uint8, for 4 bits.
        scale: (outputs, 1) for integers, multiplied by the square root of the inputs.
        op_id: a name of the weights, ignored: each call reads its arguments.

    Returns:
        (..., outputs) of x's dtype.

    Raises:
        OptionError: [matmul-arguments] for other dtypes or shapes, or integers without a scale.
    """
    _check_tensors("run_matmul", x, weights, *(() if scale is None else (scale,)))
    has_integers = weights.dtype in (torch.int8, torch.uint8)
    rows = weights.reshape(-1, weights.shape[-1])
    outputs, inputs = rows.shape[0], rows.shape[1] * (2 if weights.dtype is torch.uint8 else 1)
    is_fitting = x.dim() > 0 and x.shape[-1] == inputs and x.dtype.is_floating_point
    is_known = weights.dtype.is_floating_point or (has_integers and scale is not None)
    if not (is_fitting and is_known):
        raise OptionError(
            "`run_matmul` must have x (..., inputs) of a float dtype and weights (outputs, inputs) "
            "of a float dtype, or of int8 or uint8 with a scale, got x "
            f"{tuple(x.shape)} {x.dtype}, weights {tuple(weights.shape)} {weights.dtype}, scale "
            f"{None if scale is None else tuple(scale.shape)}. Change these.",
            code="matmul-arguments",
        )
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if has_integers and not caller.startswith("npu_llm.compat."):  # passed by our layers only
        warn_once("scale-root")
    given = x.detach().reshape(-1, inputs)
    if not len(given):
        return x.new_zeros(*x.shape[:-1], outputs)
    sizes = (inputs, outputs, len(given))
    if not has_integers:
        program = _kept(("matmul", *sizes), lambda: MatMul(*sizes))
        product = program(given, rows)
    else:
        kind = np.int8 if weights.dtype is torch.int8 else np.uint8
        program = _kept((kind, *sizes), lambda: QMatMul(*sizes, dtype=kind))
        product = program(given, rows, scale)
    return _returned(product, x).reshape(*x.shape[:-1], outputs)


def run_factory(
    x: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    backend_cls: Any,
    op_id: str | None = None,
) -> Any:
    """Runs an operator of this package on tensors, in float16.

    Args:
        x: inputs of the operator.
        weights: weights of the operator.
        backend_cls: creates the operator from the inputs' shapes: a class, or a partial of one.
        op_id: a name of the weights, ignored: each call reads its arguments.

    Returns:
        The result, or a list of results, in the first input's dtype.

    Raises:
        OptionError: [graph-array] for a value that is not a tensor, or no input.
    """
    inputs: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
    _check_tensors("run_factory", *inputs, *weights)
    if not inputs:
        raise OptionError(
            "run_factory: `x` must contain at least one tensor, got none. Pass the operator's "
            "inputs.",
            code="graph-array",
        )
    given = [tensor.detach().to(torch.float16) for tensor in (*inputs, *weights)]
    make = backend_cls if isinstance(backend_cls, partial) else partial(backend_cls)
    shapes = tuple(tuple(tensor.shape) for tensor in given)
    key = (make.func, repr(make.args), repr(sorted(make.keywords.items())), shapes)
    program = _kept(key, lambda: make(*shapes[: len(inputs)]))
    results = program(*given)
    if isinstance(results, list):
        return [_returned(result, inputs[0]) for result in results]
    return _returned(results, inputs[0])


def _check_tensors(name: str, *values: Any) -> None:
    wrong = [type(value).__name__ for value in values if not isinstance(value, torch.Tensor)]
    if wrong:
        raise OptionError(
            f"`{name}` must be given torch tensors, got {', '.join(wrong)}. Pass torch.from_numpy "
            "of an array.",
            code="graph-array",
        )


def _kept(key: Hashable, make: Callable[[], NNFactory]) -> NNFactory:
    if key not in _programs:
        _programs[key] = make()
        if len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return _programs[key]


def _returned(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return result.to(device=like.device, dtype=like.dtype)


def npu_available() -> bool:
    """Whether an NPU is in use, not a stand-in processor."""
    try:
        return npu_runtime.device_info(0).device.startswith("NPU")
    except DeviceError:
        return False


def get_driver_version() -> int:
    """Returns the version of the NPU's driver.

    Raises:
        DeviceError: [device-absent] if no NPU is in use.
    """
    if not npu_available():
        raise DeviceError(
            "`get_driver_version` must have an NPU in use, got none. Run `npu-runtime doctor` "
            "for the reason.",
            code="device-absent",
        )
    numbers = re.findall(r"\d+", npu_runtime.device_info(0).driver_version)
    return int(numbers[-1]) if numbers else 0


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)

"""The inputs by which a captured step takes adapters: two matrices for each layer, and scales.

All adapters in use lie one behind the other along the rank, so that each row of a batch can scale
each of them, and another choice is another input of the same program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from npu_llm.errors import CaptureError, ModelError

__all__ = [
    "SCALES",
    "adapted",
    "common_rank",
    "idle_inputs",
    "of_rank",
    "port_names",
    "port_shapes",
    "port_sizes",
]

SCALES = "adapter_scales"
# The smallest rank of a program of fixed sizes; others have twice as much each.
_LEAST_RANK = 16


def port_names(modules: Sequence[str]) -> tuple[str, ...]:
    """Returns the inputs of a step for the given modules, in order."""
    both = (f"adapter.{module}.{part}" for module in modules for part in ("a", "b"))
    return (SCALES, *both) if modules else ()


def port_sizes(model: torch.nn.Module, modules: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns inputs and outputs of each module.

    Raises:
        CaptureError: [adapter-module] for one that is no linear layer.
        ModelError: [adapter-base] for one that the model does not have.
    """
    found = {}
    for path in modules:
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ModelError(
                f"{path}: an adapter must change layers that the model has; got none of that name. "
                "Load the model that it was trained on.",
                code="adapter-base",
            ) from None
        weight = getattr(module, "weight", None)
        kind = type(module).__name__
        if kind == "Conv1D" and weight is not None:  # transformers' own, of GPT-2
            found[path] = (int(weight.shape[0]), int(weight.shape[1]))
        elif isinstance(module, torch.nn.Linear):
            found[path] = (module.in_features, module.out_features)
        else:
            raise _no_linear(path, kind)
    return found


def idle_inputs(sizes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Returns the inputs of a step that changes nothing: adapters of rank 1, all zeros.

    Args:
        sizes: inputs and outputs by module.
    """
    if not sizes:
        return {}
    values = {SCALES: torch.zeros(1, 1)}
    for module, (inputs, outputs) in sizes.items():
        values[f"adapter.{module}.a"] = torch.zeros(1, inputs)
        values[f"adapter.{module}.b"] = torch.zeros(outputs, 1)
    return values


def common_rank(inputs: Mapping[str, torch.Tensor]) -> int:
    """Returns the rank of a program of fixed sizes that takes these inputs of a step."""
    rank = _LEAST_RANK
    while rank < inputs[SCALES].shape[1]:
        rank *= 2
    return rank


def port_shapes(sizes: Mapping[str, Sequence[int]], rank: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the inputs of a step for one row.

    Args:
        sizes: inputs and outputs by module.
        rank: of all adapters in use together.
    """
    if not sizes:
        return {}
    shapes: dict[str, tuple[int, ...]] = {SCALES: (1, rank)}
    for module, (inputs, outputs) in sizes.items():
        shapes |= {f"adapter.{module}.a": (rank, inputs), f"adapter.{module}.b": (outputs, rank)}
    return shapes


def of_rank(inputs: Mapping[str, torch.Tensor], rank: int) -> list[dict[str, torch.Tensor]]:
    """Returns the inputs of each row's step, filled up with adapters that change nothing.

    Args:
        inputs: of a step, with scales for each row or once for all.
        rank: of all adapters together, at least that of the inputs.
    """
    filled = {}
    for name, tensor in inputs.items():
        axis = 0 if name.endswith(".a") else 1
        shape = [*tensor.shape]
        shape[axis] = rank
        # Pinned, because an NPU's plugin copies what lies in other memory of the host at each step.
        filled[name] = torch.zeros(shape, dtype=tensor.dtype, pin_memory=True)
        filled[name].narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    scales = filled.pop(SCALES)
    return [{**filled, SCALES: scales[row : row + 1].clone()} for row in range(scales.shape[0])]


@contextmanager
def adapted(
    model: torch.nn.Module, modules: Sequence[str], inputs: Mapping[str, Any]
) -> Iterator[None]:
    """Makes layers add what adapters change, inside the block.

    Args:
        model: the model.
        modules: the paths of its layers.
        inputs: by the names of `port_names`: scales (batch, ranks), A (ranks, inputs) and B
            (outputs, ranks).
    """

    def hook(path: str) -> Any:
        def add(module: torch.nn.Module, given: tuple[Any, ...], result: Any) -> Any:
            if given[0].dim() != 3:
                raise _no_linear(path, f"{type(module).__name__} that reads rows in another order")
            inner = torch.nn.functional.linear(given[0], inputs[f"adapter.{path}.a"])
            inner = inner * inputs[SCALES][:, None, :]
            return result + torch.nn.functional.linear(inner, inputs[f"adapter.{path}.b"])

        return add

    handles = [model.get_submodule(path).register_forward_hook(hook(path)) for path in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _no_linear(path: str, kind: str) -> CaptureError:
    return CaptureError(
        f"{path}: an adapter in use must change linear layers that read (batch, tokens, inputs); "
        f"got {kind}. Merge it into the model with `npu-llm merge`.",
        code="adapter-module",
    )

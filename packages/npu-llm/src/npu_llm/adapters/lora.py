"""LoRA adapters: reads files saved by PEFT, and defines the adapter inputs of a step.

A layer's change is scale * B A for A (rank, inputs) and B (outputs, rank); Hu et al., "LoRA:
Low-Rank Adaptation of Large Language Models" (2021). The scale is alpha / rank, or alpha /
sqrt(rank) for rsLoRA (Kalajdzievski, 2023).

A traced step takes two matrices for each layer, and scales. All active adapters are concatenated
along the rank, so that each row of a batch can scale them separately, and another choice is another
input of the same program.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from npu_llm.errors import CaptureError, ModelError

__all__ = [
    "SCALES",
    "AdapterFile",
    "LowRank",
    "adapted",
    "common_rank",
    "idle_inputs",
    "of_rank",
    "port_names",
    "port_shapes",
    "port_sizes",
    "read_adapter",
]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_KEY = re.compile(
    r"(?P<module>.+)\.(?P<kind>lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))"
    r"(?:\.\w+)?$"
)


@dataclass(frozen=True)
class LowRank:
    """The low-rank change of one layer.

    Attributes:
        first: A, (rank, inputs) float32; of an embedding, (rank, rows).
        second: B, (outputs, rank) float32.
        scale: factor of their product.
        magnitude: DoRA's length of each output (outputs,) float32; None without DoRA.
        is_embedding: whether it changes an embedding; its weight is (rows, outputs).
    """

    first: torch.Tensor
    second: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None = None
    is_embedding: bool = False

    def delta(self, scale: float) -> torch.Tensor:
        """Returns the change of a weight (outputs, inputs), or of an embedding (rows, outputs)."""
        product = (self.second @ self.first) * (self.scale * scale)
        return product.t() if self.is_embedding else product


@dataclass(frozen=True)
class AdapterFile:
    """An adapter on disk.

    Attributes:
        path: its folder.
        layers: the changes by module path.
        replaced: weights and biases that replace the model's, by name.
    """

    path: Path
    layers: Mapping[str, LowRank]
    replaced: Mapping[str, torch.Tensor]


def read_adapter(path: str | Path) -> AdapterFile:
    """Reads an adapter.

    Args:
        path: a folder from PEFT's save_pretrained, or its adapter_model.safetensors.

    Raises:
        ModelError: [adapter-unreadable] if it is missing or damaged, [adapter-kind] if it is not
            LoRA.
    """
    given = Path(path).expanduser()
    folder = given.parent if given.suffix == ".safetensors" else given
    weights = given if given.suffix == ".safetensors" else folder / _WEIGHTS
    config = _config(folder)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"`{folder}` must be a LoRA adapter, got {kind}. Merge it with PEFT, and load the "
            "merged model.",
            code="adapter-kind",
        )
    found, replaced = _parts(weights)
    layers = {}
    for module, parts in found.items():
        is_embedding = "lora_embedding_A" in parts
        names = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A", "lora_B")
        if not set(names) <= parts.keys() or parts[names[0]].dim() != 2:
            raise _unreadable(weights, f"{module} has no pair of matrices A and B")
        first, second = (parts[name].float() for name in names)
        if first.shape[0] != second.shape[1]:
            raise _unreadable(weights, f"A and B of {module} have different ranks")
        scale = _scale(config, module, first.shape[0])
        magnitude = parts.get("lora_magnitude_vector")
        layers[module] = LowRank(
            first, second, scale, None if magnitude is None else magnitude.float(), is_embedding
        )
    return AdapterFile(folder, layers, replaced)


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError) as failure:
        raise _unreadable(folder / _CONFIG, str(failure)) from failure
    if not isinstance(found, dict):
        raise _unreadable(folder / _CONFIG, f"a {type(found).__name__}")
    return found


def _parts(path: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    replaced: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for key in sorted(file.keys()):
                name = key.removeprefix(_PREFIX)
                match = _KEY.fullmatch(name.removesuffix(".weight"))
                if match is None:
                    # PEFT may also save the original weight of a changed layer.
                    if ".base_layer." not in name:
                        replaced[name] = file.get_tensor(key)
                    continue
                found.setdefault(match["module"], {})[match["kind"]] = file.get_tensor(key)
    except (OSError, SafetensorError) as failure:
        raise _unreadable(path, str(failure)) from failure
    if not found:
        raise _unreadable(path, "no LoRA matrices")
    return found, replaced


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = config.get("lora_alpha")
    for pattern, other in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            alpha = other
            break
    alpha = rank if alpha is None else float(alpha)
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"`{path}` must be a file of a LoRA adapter in safetensors format, got: "
        f"{reason.rstrip('.')}. Pass a folder from PEFT's save_pretrained.",
        code="adapter-unreadable",
    )


SCALES = "adapter_scales"
# The smallest rank of a static program; the next ones double it.
_LEAST_RANK = 16


def port_names(modules: Sequence[str]) -> tuple[str, ...]:
    """Returns the adapter inputs of a step for the given modules, in order."""
    both = (f"adapter.{module}.{part}" for module in modules for part in ("a", "b"))
    return (SCALES, *both) if modules else ()


def port_sizes(model: torch.nn.Module, modules: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns inputs and outputs of each module.

    Raises:
        CaptureError: [adapter-module] for a module that is not linear.
        ModelError: [adapter-base] for a module that the model does not have.
    """
    found = {}
    for path in modules:
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ModelError(
                f"`{path}` must change layers that the model has, got none of that name. Load the "
                "model that it was trained on.",
                code="adapter-base",
            ) from None
        weight = getattr(module, "weight", None)
        kind = type(module).__name__
        if kind == "Conv1D" and weight is not None:  # transformers' class for GPT-2
            found[path] = (int(weight.shape[0]), int(weight.shape[1]))
        elif isinstance(module, torch.nn.Linear):
            found[path] = (module.in_features, module.out_features)
        else:
            raise _no_linear(path, kind)
    return found


def idle_inputs(sizes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Returns inputs of a step without changes: adapters of rank 1, all zeros.

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
    """Returns the rank of a static program that fits these inputs of a step."""
    rank = _LEAST_RANK
    while rank < inputs[SCALES].shape[1]:
        rank *= 2
    return rank


def port_shapes(sizes: Mapping[str, Sequence[int]], rank: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a step's adapter inputs for one row.

    Args:
        sizes: inputs and outputs by module.
        rank: total rank of the active adapters.
    """
    if not sizes:
        return {}
    shapes: dict[str, tuple[int, ...]] = {SCALES: (1, rank)}
    for module, (inputs, outputs) in sizes.items():
        shapes |= {f"adapter.{module}.a": (rank, inputs), f"adapter.{module}.b": (outputs, rank)}
    return shapes


def of_rank(inputs: Mapping[str, torch.Tensor], rank: int) -> list[dict[str, torch.Tensor]]:
    """Returns the adapter inputs of each row's step, padded with adapters without effect.

    Args:
        inputs: inputs of a step, with scales per row or once for all rows.
        rank: total rank, at least that of the inputs.
    """
    filled = {}
    for name, tensor in inputs.items():
        axis = 0 if name.endswith(".a") else 1
        shape = [*tensor.shape]
        shape[axis] = rank
        # Pinned, because an NPU plugin copies other host memory at each step.
        filled[name] = torch.zeros(shape, dtype=tensor.dtype, pin_memory=True)
        filled[name].narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    scales = filled.pop(SCALES)
    return [{**filled, SCALES: scales[row : row + 1].clone()} for row in range(scales.shape[0])]


@contextmanager
def adapted(
    model: torch.nn.Module, modules: Sequence[str], inputs: Mapping[str, Any]
) -> Iterator[None]:
    """Makes layers add the adapters' changes inside the block.

    Args:
        model: the model.
        modules: paths of its layers.
        inputs: inputs by the names from `port_names`: scales (batch, ranks), A (ranks, inputs) and
            B (outputs, ranks).
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
        f"`{path}` must change linear layers that read (batch, tokens, inputs), got {kind}. Merge "
        "it into the model with `npu-llm merge`.",
        code="adapter-module",
    )

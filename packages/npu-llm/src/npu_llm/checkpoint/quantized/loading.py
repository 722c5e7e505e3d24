"""Loads quantized checkpoints into transformers' class, decoding weights on demand."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

from npu_compiler.quantize import QuantizedWeight
from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    AffineWeight,
    EncodedWeight,
    IntegerWeight,
    as_kernels_hold,
)
from npu_llm.checkpoint.quantized.scheme import Scheme, TensorFiles
from npu_llm.checkpoint.source import ModelSource
from npu_llm.gguf.weights import Blocks

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["LazyWeight", "load_quantized", "place"]


class LazyWeight:
    """A quantized weight of a checkpoint; see npu_llm.checkpoint.streamed.StoredWeight."""

    def __init__(
        self,
        weight: EncodedWeight,
        files: TensorFiles,
        shape: tuple[int, ...],
        *,
        is_transposed: bool = False,
    ) -> None:
        """Stores the weight.

        Args:
            weight: the weight and its tensors.
            files: reads these tensors.
            shape: shape of the model's parameter.
            is_transposed: whether the parameter is (inputs, outputs).
        """
        self.shape = shape
        self._weight = weight
        self._files = files
        self._is_transposed = is_transposed

    def _decoded(self) -> IntegerWeight | AffineWeight | torch.Tensor:
        return self._weight.decode(lambda role: self._files.read(self._weight.parts[role]))

    def values(self) -> torch.Tensor:
        """Computes the values in float32."""
        found = self._decoded()
        values = found.float() if isinstance(found, torch.Tensor) else found.floats()
        if self._is_transposed:
            values = values.t()
        return values.reshape(self.shape).contiguous()

    def integers(
        self, *, is_transposed: bool = False, index: int | None = None
    ) -> QuantizedWeight | None:
        """Returns the integers, if kernels support them; see StoredWeight."""
        if self._weight.why_floats is not None or is_transposed != self._is_transposed:
            return None
        if index is not None:
            return None
        found = self._decoded()
        return as_kernels_hold(found) if isinstance(found, IntegerWeight) else None

    def blocks(self) -> Blocks | None:
        """Returns equivalent rows of blocks, if kernels support them; see StoredWeight.

        They are computed at each call.
        """
        if self._weight.why_floats is not None or self._weight.bits:
            return None
        found = self._decoded()
        rows = found.blocks() if isinstance(found, AffineWeight) else None
        if rows is None:
            return None
        shape = self.shape[::-1] if self._is_transposed else self.shape
        return Blocks("Q4_1", (rows.numpy(),), None, shape, self._is_transposed)


def load_quantized(
    source: ModelSource, scheme: Scheme, *, auto: Any, trust_remote_code: bool
) -> tuple[Any, dict[str, Any], dict[str, LazyWeight]]:
    """Loads a model with quantized weights that stay in the files.

    Args:
        source: the checkpoint folder.
        scheme: the quantization scheme.
        auto: transformers' auto class for the task.
        trust_remote_code: whether to run model code from the checkpoint.

    Returns:
        The model, on the CPU; transformers' report of missing and unexpected names; and the stored
        weights by parameter name. The parameters themselves are zeros, except those that
        transformers computes from several weights.
    """
    config, made = _class_of(source, auto=auto, trust_remote_code=trust_remote_code)
    loading = _Loading(type(made), config, _lazy(scheme, made), scheme)
    model, info, stored = loading.run()
    if model.can_generate() and (source.folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(source.folder))
    return model, info, stored


def place(
    source: ModelSource,
    tensors: Iterable[TensorSpec],
    *,
    auto: Any,
    trust_remote_code: bool,
) -> tuple[Any, dict[str, Any]]:
    """Maps a checkpoint's tensors to a model by names and shapes, without reading them.

    Args:
        source: the checkpoint folder.
        tensors: its tensors, in unquantized form.
        auto: transformers' auto class for the task.
        trust_remote_code: whether to run model code from the checkpoint.

    Returns:
        A model without values, and transformers' report of missing and unexpected names.
    """
    config, made = _class_of(source, auto=auto, trust_remote_code=trust_remote_code)
    named = {
        one.name: torch.empty(one.shape, dtype=torch.float32, device="meta") for one in tensors
    }
    model, info = type(made).from_pretrained(
        None,
        config=config,
        state_dict=named,
        device_map="meta",
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    return model, info


def _class_of(source: ModelSource, *, auto: Any, trust_remote_code: bool) -> tuple[Any, Any]:
    """Returns a config without its quantization, and its model without values."""
    config = AutoConfig.from_pretrained(str(source.folder), trust_remote_code=trust_remote_code)
    for owner in (config, config.get_text_config()):
        for name in ("quantization_config", "compression_config"):
            if hasattr(owner, name):
                delattr(owner, name)
    with torch.device("meta"), no_init_weights():
        made = auto.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    return config, made


def _lazy(scheme: Scheme, made: Any) -> dict[str, LazyWeight]:
    """Returns the quantized weights by checkpoint name, in the parameters' shapes."""
    shapes = {name: tuple(one.shape) for name, one in made.named_parameters()}
    turned = [name for name, module in made.named_modules() if type(module).__name__ == "Conv1D"]

    def is_turned(name: str) -> bool:
        module = name.rpartition(".")[0]
        return any(
            f".{module}".endswith(f".{one}") or f".{one}".endswith(f".{module}") for one in turned
        )

    found: dict[str, LazyWeight] = {}
    for name, weight in scheme.weights.items():
        shape = weight.shape or shapes[name]
        is_transposed = is_turned(name)
        found[name] = LazyWeight(
            weight,
            scheme.files,
            shape[::-1] if is_transposed else shape,
            is_transposed=is_transposed,
        )
    return found


class _Loading:
    """Lets transformers map weights by name, with placeholders for quantized ones."""

    def __init__(
        self, kind: Any, config: Any, lazy: Mapping[str, LazyWeight], scheme: Scheme
    ) -> None:
        self._kind = kind
        self._config = config
        self._lazy = lazy
        self._plain = {name: scheme.files.read(name) for name in scheme.plain}
        kinds = {one.dtype for one in self._plain.values() if one.is_floating_point()}
        self._dtype = kinds.pop() if len(kinds) == 1 else torch.float32

    def run(self) -> tuple[Any, dict[str, Any], dict[str, LazyWeight]]:
        """Loads the model; see load_quantized."""
        stand_ins = {
            name: _stand_in(weight.shape, self._dtype) for name, weight in self._lazy.items()
        }
        model, info = self._load(stand_ins)
        stored = self._placed(model, stand_ins)
        placed = {id(weight) for weight in stored.values()}
        computed = {
            name: weight.values().to(self._dtype)
            for name, weight in self._lazy.items()
            if id(weight) not in placed and name not in info["unexpected_keys"]
        }
        if computed:  # from several weights, such as experts
            model, info = self._load({**stand_ins, **computed})
            stored = self._placed(model, stand_ins)
        return model, info, stored

    def _load(self, quantized: Mapping[str, torch.Tensor]) -> tuple[Any, dict[str, Any]]:
        model, info = self._kind.from_pretrained(
            None,
            config=copy.deepcopy(self._config),
            state_dict={**self._plain, **quantized},
            dtype=self._dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        return model, info

    def _placed(self, model: Any, stand_ins: Mapping[str, torch.Tensor]) -> dict[str, LazyWeight]:
        """Returns the weights with placeholders that are parameters, by parameter name."""
        by_address = {one.data_ptr(): name for name, one in stand_ins.items()}
        found: dict[str, LazyWeight] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            source = by_address.get(parameter.data_ptr())
            if source is None:
                continue
            stand_in = stand_ins[source]
            if parameter.shape == stand_in.shape and parameter.stride() == stand_in.stride():
                found[name] = self._lazy[source]
        return found


def _stand_in(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros without memory; their strides distinguish them from their transpose."""
    return torch.zeros(*shape[:-1], 1, dtype=dtype).expand(shape)

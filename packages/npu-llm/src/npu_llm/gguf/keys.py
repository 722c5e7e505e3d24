"""The metadata of one file, read by its architecture's table row; each use is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npu_llm.errors import ModelError
from npu_llm.gguf.file import GgufFile, GgufTensor

__all__ = ["Keys"]

_NOTHING: Any = object()
_LARGEST_HEAD = 1 << 14
# Keys without effect on the result, for any architecture.
_WITHOUT_EFFECT = {
    "vocab_size": "determined by the embedding's rows",
    "rope.scaling.finetuned": "a note about how the model was created",
    "attention.layer_norm_epsilon": "an architecture has one of the two, and its row reads it",
    "attention.layer_norm_rms_epsilon": "an architecture has one of the two, and its row reads it",
    "expert_shared_count": "determined by the shared experts' tensors",
    "expert_shared_feed_forward_length": "determined by the shared experts' tensors",
    "rope.dimension_sections": "text has equal positions in all of them",
    "rope.freq_base_swa": "rows read it if layers have windows",
    "pooling_type": "for text embeddings, which a language model's answers do not use",
    # llama.cpp reads them for a few architectures; rows of these use them.
    "rope.scaling.yarn_log_multiplier": "read for architectures with rows that use it",
    "rope.scaling.yarn_beta_fast": "read for architectures with rows that use it",
    "rope.scaling.yarn_beta_slow": "read for architectures with rows that use it",
    "rope.scaling.yarn_ext_factor": "read for architectures with rows that use it",
    "rope.scaling.yarn_attn_factor": "read for architectures with rows that use it",
    "rope.scaling.alpha": "already part of rope.freq_base in files of language models",
    "tensor_data_layout": "a note on rows of old files, which no llama.cpp release reads",
}
# Values of further keys without effect if no row reads the key.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "ssm.dt_b_c_rms": (False,),
}


class Keys:
    """The keys and tensors of a file, without the architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._used: set[str] = set()

    def get(self, key: str, default: Any = _NOTHING) -> Any:
        """Returns a value of the metadata.

        Raises:
            ModelError: [gguf-metadata] if it is missing and there is no default.
        """
        name = f"{self.file.architecture}.{key}"
        self._used.add(name)
        value = self.file.metadata.get(name, default)
        if value is _NOTHING:
            raise self.refuse(f"must have {name}")
        return value

    def has(self, key: str) -> bool:
        """Whether the file has a key."""
        return f"{self.file.architecture}.{key}" in self.file.metadata

    def number(self, key: str, default: Any = _NOTHING) -> int:
        """Returns an integer shared by all layers.

        Raises:
            ModelError: [gguf-metadata] for another type, or different values by layer.
        """
        value = self.get(key, default)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.refuse(f"must have one whole number as {key}, got {value!r:.60}")
        return value

    def real(self, key: str, default: Any = _NOTHING) -> float:
        """Returns a real number.

        Raises:
            ModelError: [gguf-metadata] for another type.
        """
        value = self.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refuse(f"must have a number as {key}, got {value!r:.60}")
        return float(value)

    def by_layer(self, key: str, default: Any = _NOTHING) -> list[Any]:
        """Returns a value for each layer.

        Raises:
            ModelError: [gguf-metadata] for a list with fewer values than layers.
        """
        value = self.get(key, default)
        if not isinstance(value, list):
            return [value] * self.layers
        if len(value) < self.layers:
            raise self.refuse(f"must have {key} for {self.layers} layers, got {len(value)} values")
        return value[: self.layers]

    @property
    def layers(self) -> int:
        """Number of layers without those for multi-token prediction."""
        blocks = self.number("block_count")
        if not 0 < blocks <= len(self.file.tensors):
            raise self.refuse(f"must have a block_count that matches its tensors, got {blocks}")
        return blocks - self.number("nextn_predict_layers", 0)

    @property
    def width(self) -> int:
        """Width of the residual stream and the embedding."""
        width, columns = self.number("embedding_length"), self.tensor("token_embd.weight").shape[-1]
        if width != columns:
            raise self.refuse(
                f"must have an embedding_length of {columns}, as token_embd.weight has"
            )
        return width

    @property
    def heads(self) -> int:
        """Number of query heads in every layer."""
        heads = self.number("attention.head_count")
        if not 0 < heads <= self.width:
            raise self.refuse(f"must have attention.head_count within its width, got {heads}")
        return heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads in every layer."""
        count = self.number("attention.head_count_kv", self.heads)
        if not 0 < count <= self.heads or self.heads % count:
            raise self.refuse(
                f"must have attention.head_count_kv that divides {self.heads}, got {count}"
            )
        return count

    @property
    def head_dim(self) -> int:
        """Size of a head's queries and keys."""
        found = self.number("attention.key_length", self.width // self.heads)
        if not 0 < found <= _LARGEST_HEAD:
            raise self.refuse(
                f"must have an attention.key_length up to {_LARGEST_HEAD}, got {found}"
            )
        value = self.number("attention.value_length", self.width // self.heads)
        if value != found:
            raise self.refuse(
                f"must have attention.value_length equal to key_length ({found}), got {value}"
            )
        return found

    @property
    def rotated(self) -> int:
        """Number of rotated rows of a head."""
        found = self.number("rope.dimension_count", self.head_dim)
        if found > self.head_dim or found % 2:
            raise self.refuse(f"must have an even rope.dimension_count within a head, got {found}")
        return found

    @property
    def vocabulary(self) -> int:
        """Number of rows in the embedding."""
        return self.tensor("token_embd.weight").shape[0]

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is also the head."""
        return "output.weight" not in self.file.tensors

    def has_tensor(self, name: str) -> bool:
        """Whether the file has a tensor; `*` stands for any layer index."""
        if "*" not in name:
            return name in self.file.tensors
        before, after = name.split("*", 1)
        return any(f"{before}{layer}{after}" in self.file.tensors for layer in range(self.layers))

    def tensor(self, name: str) -> GgufTensor:
        """Returns a tensor.

        Raises:
            ModelError: [weights-missing] if it is missing.
        """
        found = self.file.tensors.get(name)
        if found is None:
            raise ModelError(
                f"`{self.file.path}` must contain all weights of the model; {name} is missing. Get "
                "the whole file, or convert the model again.",
                code="weights-missing",
            )
        return found

    def size(self, tensor: str, axis: int, key: str, default: int | None = None) -> int:
        """Returns a size from the first layer's tensor, which must match the key if there is one.

        Args:
            tensor: its name, with `*` for the layer index.
            axis: index of the size, outermost first.
            key: the key, which may be missing.
            default: default if no layer has the tensor.

        Raises:
            ModelError: [gguf-metadata] if they differ, or both are missing.
        """
        for layer in range(self.layers):
            found = self.file.tensors.get(tensor.replace("*", str(layer)))
            if found is not None and len(found.shape) > axis:
                size = found.shape[axis]
                if self.has(key) and size not in self.by_layer(key):
                    raise self.refuse(f"must have {key} = {size}, as {found.name} has")
                return size
        if default is not None:
            return default
        return self.number(key)

    def gating(self, *allowed: int, default: int | None = None) -> int:
        """Returns the routers' scoring: 1 softmax, 2 sigmoid, 3 softmax of the chosen experts.

        Raises:
            ModelError: [gguf-metadata] for a scoring that the class does not support.
        """
        found = self.number("expert_gating_func", 0) or default
        if found not in allowed:
            raise self.refuse(f"must have expert_gating_func {allowed}, got {found}")
        return found

    def check_all_used(self, without_effect: Sequence[str]) -> None:
        """Rejects unused keys of the architecture.

        Args:
            without_effect: further keys without effect on the result.

        Raises:
            ModelError: [gguf-metadata] with their names.
        """
        prefix = self.file.architecture + "."
        harmless = {prefix + key for key in (*_WITHOUT_EFFECT, *without_effect)}
        left = [
            name
            for name in self.file.metadata
            if name.startswith(prefix)
            and name not in self._used
            and name not in harmless
            and self.file.metadata[name] not in _NEUTRAL.get(name.removeprefix(prefix), ())
        ]
        if left:
            raise self.refuse(
                "must have no unused metadata, got "
                + ", ".join(f"{name} = {self.file.metadata[name]!r:.40}" for name in left[:4])
            )

    def refuse(self, rule: str) -> ModelError:
        """Returns the error for unsupported metadata."""
        return ModelError(
            f"{self.file.path}: {rule} (architecture {self.file.architecture!r}). Convert the "
            "model again, or use a checkpoint folder of it.",
            code="gguf-metadata",
        )

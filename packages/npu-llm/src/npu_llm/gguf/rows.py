"""The type of a row in the table of GGUF architectures, and helper functions for rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.weights import Weight, halves, joined, of_tensor, zeros

__all__ = [
    "DECODER",
    "EMBEDDINGS",
    "GATED",
    "LAYER_NORMED",
    "LLAMA",
    "PLAIN_ATTENTION",
    "Architecture",
    "At",
    "Source",
    "changed",
    "constant",
    "either",
    "experts",
    "fused",
    "gate_and_up",
    "gates_and_ups",
    "heads",
    "less_one",
    "one_rope",
    "per_head",
    "real",
    "transposed",
]


@dataclass(frozen=True)
class At:
    """The lookup of a parameter.

    Attributes:
        keys: the file.
        numbers: indices in the parameter's name, outermost first: layer, then expert.
        leaf: last part of the parameter's name, such as "weight".
    """

    keys: Keys
    numbers: tuple[int, ...]
    leaf: str

    @property
    def layer(self) -> int:
        """The layer index."""
        return self.numbers[0]

    def has(self, name: str) -> bool:
        """Whether the file has a tensor for this parameter."""
        return self.full(name) in self.keys.file.tensors

    def full(self, name: str) -> str:
        """Returns the name of a tensor with the layer index and the parameter's last part.

        A name with a leading "=" is used literally.
        """
        if "*" in name:
            name = name.replace("*", str(self.layer))
        if name.startswith("="):
            return name[1:]
        return name if name.endswith((".weight", ".bias")) else f"{name}.{self.leaf}"

    def weight(self, name: str) -> Weight:
        """Returns a tensor unchanged.

        Raises:
            ModelError: [weights-missing] if it is missing.
        """
        return of_tensor(self.keys.tensor(self.full(name)))

    def by_layer(self, key: str, default: Any) -> int:
        """Returns an integer of the metadata for this layer."""
        return int(self.keys.by_layer(key, default)[self.layer])


# Builds a parameter from a file's tensors.
Source = Callable[[At], Weight]
# A tensor's name without ".weight" and ".bias", or a Source.
Named = str | Source


def _one_rope(keys: Keys) -> Mapping[str, Rope]:
    return {"": read_rope(keys)}


@dataclass(frozen=True)
class Architecture:
    """A row of the table: how to build transformers' class for a file of one architecture.

    Attributes:
        model_type: name of the class's config in transformers.
        names: the class's modules, with `*` for indices, and the tensors of their weights and
            biases. A parameter that is neither weight nor bias is named in full.
        config: attributes of the config: a value, or a function of the metadata.
        ropes: rotary positions by the prefix of the buffers' names; None for a class without them.
        prepare: adjusts the model beyond its config, after it is created and before it has weights.
        optional: tensors, without layer and ".weight", that may be missing: the class's parameter
            is then zero or omitted.
        auto: name of transformers' auto class for the task.
        rope_extras: further entries of the config's rope_parameters.
        without_effect: metadata keys without effect on the result.
        unused: name prefixes of tensors that the forward pass does not use.
    """

    model_type: str
    names: Mapping[str, Named]
    config: Mapping[str, Any]
    ropes: Callable[[Keys], Mapping[str, Rope]] | None = _one_rope
    prepare: Callable[[Any, Keys], None] | None = None
    optional: tuple[str, ...] = ()
    auto: str = "AutoModelForCausalLM"
    without_effect: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    rope_extras: Callable[[Keys], Mapping[str, Any]] = lambda keys: {}

    def config_of(self, keys: Keys) -> dict[str, Any]:
        """Returns the config's attributes for a file."""
        return {
            name: value(keys) if callable(value) else value for name, value in self.config.items()
        }


def one_rope(**options: Any) -> Callable[[Keys], Mapping[str, Rope]]:
    """Returns one rotation for all layers; options are those of read_rope."""
    return lambda keys: {"": read_rope(keys, **options)}


def real(key: str, *default: float) -> Callable[[Keys], float]:
    """Returns a function that reads a number; a default makes it optional."""
    return lambda keys: keys.real(key, *default)


def heads(part: str, *, paired: bool = False) -> Source:
    """Returns queries, keys or values, which may be fused into one tensor.

    Args:
        part: "q", "k" or "v".
        paired: whether the file has pairs of rotary positions while the class has halves.
    """

    def find(at: At) -> Weight:
        keys = at.keys
        count = at.by_layer("attention.head_count", None)
        kv_count = at.by_layer("attention.head_count_kv", count)
        size = keys.head_dim
        if at.has(f"blk.*.attn_{part}"):
            found = at.weight(f"blk.*.attn_{part}")
        else:
            whole = at.weight("blk.*.attn_qkv")
            q, kv = count * size, kv_count * size
            first, last = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}[part]
            if whole.shape[0] != q + 2 * kv:
                return whole  # of a wrong shape, which is reported later
            found = whole.rows(first, last)
        mine = count if part == "q" else kv_count
        if paired and part != "v" and found.shape[0] == mine * size:
            found = found.take(halves(mine, size, keys.rotated))
        return found

    return find


def fused(at: At) -> Weight:
    """Concatenates queries, keys and values."""
    if at.has("blk.*.attn_qkv"):
        return at.weight("blk.*.attn_qkv")
    return joined([at.weight(f"blk.*.attn_{part}") for part in "qkv"])


def gate_and_up(at: At) -> Weight:
    """Concatenates the rows of the gate and up projections."""
    if at.has("blk.*.ffn_gate"):
        return joined([at.weight("blk.*.ffn_gate"), at.weight("blk.*.ffn_up")])
    return at.weight("blk.*.ffn_up")


def per_head(name: str) -> Source:
    """Returns the row of a tensor for the head with the second index in the name."""

    def find(at: At) -> Weight:
        row = at.numbers[1]
        found = at.weight(name).rows(row, row + 1)
        return found.view(found.shape[-1])

    return find


def gates_and_ups(at: At) -> Weight:
    """Returns the stacked matrices of experts' gates and up projections."""
    if at.has("blk.*.ffn_gate_up_exps.weight"):
        return at.weight("blk.*.ffn_gate_up_exps.weight")
    both = [at.weight(f"blk.*.ffn_{part}_exps.weight") for part in ("gate", "up")]
    return joined(both, axis=1) if both[0].shape == both[1].shape else both[0]


def experts(
    module: str,
    *,
    router: str = "gate",
    bias: str | None = None,
    shared: str | None = None,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Mapping[str, Named]:
    """Returns the names for a mixture of experts.

    Args:
        module: the class's module with the router and the experts.
        router: name of the router in it.
        bias: parameter added to the scores when experts are chosen, if there is one.
        shared: module of the shared experts, if there are any.
        parts: gate, up and down projection of the shared experts.
    """
    found: dict[str, Named] = {
        f"{module}.{router}": "blk.*.ffn_gate_inp",
        f"{module}.experts.gate_up_proj": gates_and_ups,
        f"{module}.experts.down_proj": "blk.*.ffn_down_exps.weight",
    }
    if bias is not None:
        found[f"{module}.{bias}"] = "blk.*.exp_probs_b.bias"
    if shared is not None:
        for name, part in zip(parts, ("gate", "up", "down"), strict=True):
            found[f"{module}.{shared}.{name}"] = f"blk.*.ffn_{part}_shexp"
    return found


def either(*names: str) -> Source:
    """Returns the first of several tensors that the file has."""

    def find(at: At) -> Weight:
        return at.weight(next((name for name in names if at.has(name)), names[0]))

    return find


def less_one(name: str) -> Source:
    """Returns a norm's weight minus the one that the file includes and the class adds."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        return found.then(lambda values: values - np.float32(1.0)) if at.leaf == "weight" else found

    return find


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Source:
    """Returns a tensor with changed values in the same shape."""
    return lambda at: at.weight(name).then(change)


def transposed(name: str) -> Source:
    """Returns a matrix as (inputs, outputs); a bias unchanged."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        return found.transposed() if len(found.shape) > 1 else found

    return find


def constant(value: Callable[[At], np.ndarray]) -> Source:
    """Returns constant values."""

    def find(at: At) -> Weight:
        values = np.asarray(value(at), np.float32)
        return zeros(*values.shape).then(lambda _: values)

    return find


DECODER: Mapping[str, Any] = {
    "vocab_size": lambda keys: keys.vocabulary,
    "hidden_size": lambda keys: keys.width,
    "intermediate_size": lambda keys: keys.number("feed_forward_length", 0),
    "num_hidden_layers": lambda keys: keys.layers,
    "num_attention_heads": lambda keys: keys.heads,
    "num_key_value_heads": lambda keys: keys.kv_heads,
    "head_dim": lambda keys: keys.head_dim,
    "max_position_embeddings": lambda keys: keys.number("context_length"),
    "rms_norm_eps": real("attention.layer_norm_rms_epsilon"),
    "tie_word_embeddings": lambda keys: keys.is_tied,
}
LAYER_NORMED: Mapping[str, Any] = {
    **{name: value for name, value in DECODER.items() if name != "rms_norm_eps"},
    "layer_norm_eps": real("attention.layer_norm_epsilon"),
}
EMBEDDINGS: Mapping[str, Named] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
PLAIN_ATTENTION: Mapping[str, Named] = {
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.self_attn.q_proj": heads("q"),
    "model.layers.*.self_attn.k_proj": heads("k"),
    "model.layers.*.self_attn.v_proj": heads("v"),
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
}
GATED: Mapping[str, Named] = {
    "model.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "model.layers.*.mlp.gate_proj": "blk.*.ffn_gate",
    "model.layers.*.mlp.up_proj": "blk.*.ffn_up",
    "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
}
LLAMA: Mapping[str, Named] = {**EMBEDDINGS, **PLAIN_ATTENTION, **GATED}

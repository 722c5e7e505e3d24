"""Predefined steps of known decoders, built from the config without model code or tracing.

The instructions equal those of a trace of transformers' class, so that the fused programs are
equal; tests check this for each family. Other families are traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from npu_compiler.kernel_programs.draft import Draft, Line, Part
from npu_compiler.kernel_programs.lowering import Lowered, finish
from npu_ops.kernel_programs.program import Activation, LayerShape, NormOptions, Recipe

__all__ = ["Decoder", "Rope", "known_decoder", "parameter_shapes", "write_step"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True)
class Rope:
    """Rotary frequencies.

    Attributes:
        inverse: (pairs,) float32, radians a token; the first 2 * pairs channels of a head turn.
        factor: multiplies cosine and sine.
    """

    inverse: torch.Tensor
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The differences between decoders of the Llama kind.

    Attributes:
        architecture: name of transformers' class.
        width: width of the residual stream.
        heads: query heads per layer.
        kv_heads: key and value heads per layer.
        head_dim: width of a head.
        inner: width of the feed-forward layer.
        vocabulary: vocabulary size; token ids are below it.
        eps: epsilon of the norms.
        activation: activation of the gate.
        is_tied: whether the embedding is also the head.
        windows: attention window of each layer in tokens; None for all.
        ropes: rotary frequencies of each layer; None for no rotation.
        scale: scale of the attention scores.
        added: offset added to a norm's weights.
        biases: projections with a bias, from "qkv", "output" and "mlp".
        norms: whether a layer normalizes before attention and feed-forward, after them, or both.
        head_norms: normalization of queries and keys: per head, as a whole, or None.
        is_joined: whether queries, keys and values share one weight, and gate and up share one.
        embedding_factor: factor of the embedding.
        residual_factor: factor of a layer's addition to the stream.
        logits_factor: factor of the logits.
        score_cap: c tanh(score / c); None for none.
        logits_cap: c tanh(logit / c); None for none.
    """

    architecture: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    eps: float
    activation: Activation
    is_tied: bool
    windows: tuple[int | None, ...]
    ropes: tuple[Rope | None, ...]
    scale: float
    added: float = 0.0
    biases: frozenset[str] = frozenset()
    norms: Literal["before", "after", "both"] = "before"
    head_norms: Literal["head", "whole"] | None = None
    is_joined: bool = False
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0
    score_cap: float | None = None
    logits_cap: float | None = None


def known_decoder(
    config: Mapping[str, Any], ropes: Mapping[str, Rope] | None = None
) -> Decoder | None:
    """Returns the decoder that a config describes; None if it is unknown.

    Args:
        config: the content of config.json; attributes with defaults may be missing, except for the
            activation.
        ropes: known frequencies by kind of layer, "" for all kinds; by default those of the
            config's rope_parameters.
    """
    kind = str(config.get("model_type"))
    architecture, family = _FAMILIES.get(kind, ("", None))
    default = "gelu_pytorch_tanh" if kind.startswith("gemma") else "silu"
    named = config.get("hidden_activation") or config.get("hidden_act") or default
    activation = _ACTIVATIONS.get(named)
    if family is None or activation is None:
        return None
    heads = int(config["num_attention_heads"])
    width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    head_dim = int(config.get("head_dim") or width // heads)
    turning = tuple(_ropes(config, head_dim, layers, ropes or {}))
    if len(turning) != layers:
        return None
    found = {
        "architecture": architecture,
        "width": width,
        "heads": heads,
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": head_dim,
        "inner": int(config["intermediate_size"]),
        "vocabulary": int(config["vocab_size"]),
        "eps": float(config["rms_norm_eps"]),
        "activation": activation,
        "is_tied": bool(config["tie_word_embeddings"]),
        "windows": _windows(config, layers),
        "ropes": turning,
        "scale": head_dim**-0.5,
        "biases": frozenset(_BIASES if config.get("attention_bias") else ()),
    }
    more = family(config)
    return None if more is None else Decoder(**{**found, **more})


_BIASES = ("qkv", "output")


def _llama(config: Mapping[str, Any]) -> dict[str, Any]:
    biases = {*(_BIASES if config.get("attention_bias") else ())}
    return {"biases": frozenset(biases | ({"mlp"} if config.get("mlp_bias") else set()))}


def _seed(config: Mapping[str, Any]) -> dict[str, Any]:
    said = {"qkv": "attention_bias", "output": "attention_out_bias", "mlp": "mlp_bias"}
    defaults = {"qkv": True, "output": False, "mlp": False}
    return {
        "biases": frozenset(one for one in said if config.get(said[one], defaults[one])),
    }


def _gemma(config: Mapping[str, Any]) -> dict[str, Any] | None:
    is_causal = not config.get("use_bidirectional_attention")
    if not is_causal:
        return None
    factor = float(torch.tensor(float(config["hidden_size"]) ** 0.5))
    return {"added": 1.0, "embedding_factor": factor}


def _gemma_2(config: Mapping[str, Any]) -> dict[str, Any] | None:
    common = _gemma(config)
    caps = {
        "score_cap": config.get("attn_logit_softcapping"),
        "logits_cap": config.get("final_logit_softcapping"),
    }
    if common is None or 0 in caps.values():
        return None
    scale = float(config.get("query_pre_attn_scalar", 256)) ** -0.5
    return {**common, **caps, "norms": "both", "scale": scale}


def _gemma_3(config: Mapping[str, Any]) -> dict[str, Any] | None:
    common = _gemma_2(config)
    return common and {**common, "head_norms": "head"}


def _granite(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_llama(config),
        "embedding_factor": float(config.get("embedding_multiplier", 1.0)),
        "residual_factor": float(config.get("residual_multiplier", 1.0)),
        "logits_factor": 1 / float(config.get("logits_scaling", 1.0)),
        "scale": float(config.get("attention_multiplier", 1.0)),
    }


_Family = Callable[[Mapping[str, Any]], dict[str, Any] | None]
# By model_type: the class and its additions to the common attributes; None for an unknown config.
_FAMILIES: dict[str, tuple[str, _Family]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "mistral": ("MistralForCausalLM", lambda config: {"biases": frozenset()}),
    "qwen2": ("Qwen2ForCausalLM", lambda config: {"biases": frozenset({"qkv"})}),
    "qwen3": ("Qwen3ForCausalLM", lambda config: {"head_norms": "head"}),
    "seed_oss": ("SeedOssForCausalLM", _seed),
    "smollm3": ("SmolLM3ForCausalLM", _llama),
    "granite": ("GraniteForCausalLM", _granite),
    "olmo2": ("Olmo2ForCausalLM", lambda config: {"norms": "after", "head_norms": "whole"}),
    "phi3": ("Phi3ForCausalLM", lambda config: {"biases": frozenset(), "is_joined": True}),
    "gemma": ("GemmaForCausalLM", _gemma),
    "gemma2": ("Gemma2ForCausalLM", _gemma_2),
    "gemma3_text": ("Gemma3ForCausalLM", _gemma_3),
}


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window")
    kinds = config.get("layer_types") or ["sliding_attention" if window else ""] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _ropes(
    config: Mapping[str, Any], head_dim: int, layers: int, given: Mapping[str, Rope]
) -> Iterator[Rope | None]:
    """Yields each layer's frequencies, up to the first unknown kind."""
    parameters = config.get("rope_parameters") or {}
    kinds = config.get("layer_types") or [""] * layers
    turning = config.get("no_rope_layers") or [1] * layers
    made: dict[str, Rope | None] = {}
    for kind, turns in zip(kinds, turning, strict=True):
        if kind not in made:
            own = parameters.get(kind)
            said = own if isinstance(own, Mapping) else parameters
            made[kind] = given.get(kind) or given.get("") or _rope(said, head_dim)
        if made[kind] is None:
            return
        yield made[kind] if turns else None


def _rope(said: Mapping[str, Any], head_dim: int) -> Rope | None:
    """Returns the frequencies for a config's parameters; None for an unknown kind."""
    size = int(head_dim * float(said.get("partial_rotary_factor", 1.0)))
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    inverse = 1.0 / (float(said.get("rope_theta", 10000.0)) ** exponents)
    kind = said.get("rope_type", "default")
    if kind == "linear":
        inverse /= said["factor"]
    elif kind == "llama3":
        inverse = _llama_3(inverse, said)
    elif kind != "default":
        return None
    return Rope(inverse)


def _llama_3(inverse: torch.Tensor, said: Mapping[str, Any]) -> torch.Tensor:
    """Scales long wavelengths by a factor, keeps short ones, and blends between (Llama 3.1)."""
    low, high = float(said["low_freq_factor"]), float(said["high_freq_factor"])
    waves = said["original_max_position_embeddings"] / (2 * math.pi / inverse)
    share = ((waves - low) / (high - low)).clamp(0, 1)
    slow = inverse / said["factor"]
    blended = (1 - share) * slow + share * inverse
    return torch.where(waves < low, slow, torch.where(waves > high, inverse, blended))


def parameter_shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder's parameters by transformers' names."""
    width, inner = decoder.width, decoder.inner
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (decoder.vocabulary, width)}

    def linear(name: str, outputs: int, inputs: int, biases: str = "") -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        if biases in decoder.biases:
            found[f"{name}.bias"] = (outputs,)

    for number in range(len(decoder.windows)):
        name = f"model.layers.{number}"
        attention, feed = f"{name}.self_attn", f"{name}.mlp"
        if decoder.is_joined:
            linear(f"{attention}.qkv_proj", queries + 2 * keys, width, "qkv")
            linear(f"{feed}.gate_up_proj", 2 * inner, width, "mlp")
        else:
            for part, outputs in {"q": queries, "k": keys, "v": keys}.items():
                linear(f"{attention}.{part}_proj", outputs, width, "qkv")
            for part in ("gate", "up"):
                linear(f"{feed}.{part}_proj", inner, width, "mlp")
        linear(f"{attention}.o_proj", width, queries, "output")
        linear(f"{feed}.down_proj", width, inner, "mlp")
        if decoder.head_norms is not None:
            is_whole = decoder.head_norms == "whole"
            found[f"{attention}.q_norm.weight"] = (queries if is_whole else decoder.head_dim,)
            found[f"{attention}.k_norm.weight"] = (keys if is_whole else decoder.head_dim,)
        norms = {
            "before": ("input", "post_attention"),
            "after": ("post_attention", "post_feedforward"),
            "both": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
        }
        for norm in norms[decoder.norms]:
            found[f"{name}.{norm}_layernorm.weight"] = (width,)
    found["model.norm.weight"] = (width,)
    if not decoder.is_tied:
        linear("lm_head", decoder.vocabulary, width)
    return found


def write_step(decoder: Decoder, sources: Mapping[str, torch.Tensor], *, positions: int) -> Lowered:
    """Builds a decoder's step as a kernel program.

    Args:
        decoder: the model.
        sources: its parameters by transformers' names.
        positions: maximum sequence length.

    Raises:
        LoweringError: [not-row-wise], see npu_compiler.kernel_programs.lower_to_kernels.
    """
    return _Writer(decoder, positions).step(sources)


class _Writer:
    def __init__(self, decoder: Decoder, positions: int) -> None:
        self._decoder = decoder
        self._positions = positions
        self._draft = Draft()
        self._tables: dict[str, torch.Tensor] = {}
        self._rotations: dict[int, tuple[str, str, str]] = {}

    def step(self, sources: Mapping[str, torch.Tensor]) -> Lowered:
        model, draft = self._decoder, self._draft
        table = "model.embed_tokens.weight"
        recipe = Recipe(sources=(table,), kind="linear", keeps_precision=True)
        stream = draft.add(
            "embed", model.width, {}, module="model.embed_tokens",
            table=draft.weight(recipe), index="token",
        )  # fmt: skip
        stream = self._times(stream, model.embedding_factor, "model.embed_tokens")
        for number in range(len(model.windows)):
            stream = self._layer(number, stream)
        stream = draft.add("keep", model.width, {"input": stream})
        stream = self._norm(stream, "model.norm")
        if not model.is_tied:
            recipe = Recipe(sources=("lm_head.weight",), kind="linear")
        logits = draft.add(
            "linear", model.vocabulary, {"input": stream}, module="lm_head",
            weight=draft.weight(recipe), bias=None,
        )  # fmt: skip
        if model.logits_cap is not None:
            logits = self._capped(logits, model.logits_cap)
        logits = self._times(logits, model.logits_factor, "")
        shape = LayerShape(model.kv_heads, model.head_dim, model.head_dim)
        return finish(
            draft,
            self._tables,
            sources,
            layers=[shape] * len(model.windows),
            logits=logits,
            vocabulary=model.vocabulary,
            positions=self._positions,
        )

    def _layer(self, number: int, stream: Part) -> Part:
        model, name = self._decoder, f"model.layers.{number}"
        before, after = model.norms != "after", model.norms != "before"
        # The names of the norms around the feed-forward layer.
        first = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        rows = self._norm(stream, f"{name}.input_layernorm") if before else stream
        rows = self._attention(number, f"{name}.self_attn", rows)
        if after:
            rows = self._norm(rows, f"{name}.post_attention_layernorm")
        stream = self._sum(stream, rows, name)
        rows = self._norm(stream, f"{name}.{first}") if before else stream
        rows = self._feed_forward(f"{name}.mlp", rows)
        if after:
            rows = self._norm(rows, f"{name}.post_feedforward_layernorm")
        return self._sum(stream, rows, name)

    def _attention(self, number: int, name: str, rows: Part) -> Part:
        model, draft = self._decoder, self._draft
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        has_bias = "qkv" in model.biases
        if model.is_joined:
            joined = self._linear(rows, f"{name}.qkv_proj", queries + 2 * keys, has_bias)
            q = Part(joined.value, 0, queries)
            k = Part(joined.value, queries, keys)
            v = Part(joined.value, queries + keys, keys)
        else:
            q = self._linear(rows, f"{name}.q_proj", queries, has_bias)
            k = self._linear(rows, f"{name}.k_proj", keys, has_bias)
            v = self._linear(rows, f"{name}.v_proj", keys, has_bias)
        q = self._placed(number, q, model.heads, f"{name}.q_norm")
        k = self._placed(number, k, model.kv_heads, f"{name}.k_norm")
        draft.lines.append(Line("append", -1, {"keys": k, "values": v}, {"layer": number}, name))
        found = draft.add(
            "attend", queries, {"queries": q}, module=name, layer=number, heads=model.heads,
            scale=model.scale, window=self._window(number), soft_cap=model.score_cap,
            sinks=None, slopes=None,
        )  # fmt: skip
        return self._linear(found, f"{name}.o_proj", model.width, "output" in model.biases)

    def _window(self, number: int) -> int | None:
        window = self._decoder.windows[number]
        return None if window is None or window >= self._positions else window

    def _placed(self, number: int, rows: Part, heads: int, norm: str) -> Part:
        """Normalizes and rotates queries or keys."""
        model = self._decoder
        if model.head_norms is not None:
            rows = self._norm(rows, norm, heads if model.head_norms == "head" else 1)
        rope = model.ropes[number]
        return rows if rope is None else self._rotate(rows, heads, rope, norm.rpartition(".")[0])

    def _feed_forward(self, name: str, rows: Part) -> Part:
        model, draft = self._decoder, self._draft
        has_bias = "mlp" in model.biases
        if model.is_joined:
            joined = self._linear(rows, f"{name}.gate_up_proj", 2 * model.inner, has_bias)
            gate = Part(joined.value, 0, model.inner)
            up = Part(joined.value, model.inner, model.inner)
        else:
            gate = self._linear(rows, f"{name}.gate_proj", model.inner, has_bias)
            up = self._linear(rows, f"{name}.up_proj", model.inner, has_bias)
        gate = draft.add(
            "combine", model.inner, {"left": gate}, module=name, activation=model.activation
        )
        inner = draft.add(
            "combine", model.inner, {"left": gate, "right": up}, module=name, op="mul"
        )
        return self._linear(inner, f"{name}.down_proj", model.width, has_bias)

    def _linear(self, rows: Part, name: str, outputs: int, has_bias: bool) -> Part:
        draft = self._draft
        bias = draft.weight(Recipe(sources=(f"{name}.bias",), kind="vector")) if has_bias else None
        recipe = Recipe(sources=(f"{name}.weight",), kind="linear")
        return draft.add(
            "linear", outputs, {"input": rows}, module=name, weight=draft.weight(recipe), bias=bias
        )

    def _norm(self, rows: Part, name: str, parts: int = 1) -> Part:
        recipe = Recipe(sources=(f"{name}.weight",), kind="vector", added=self._decoder.added)
        options = NormOptions(
            kind="rms", eps=self._decoder.eps, weight=self._draft.weight(recipe), parts=parts
        )
        return self._draft.add("norm", rows.width, {"input": rows}, module=name, options=options)

    def _sum(self, stream: Part, rows: Part, name: str) -> Part:
        rows = self._times(rows, self._decoder.residual_factor, name)
        reads = {"left": stream, "right": rows}
        return self._draft.add("combine", stream.width, reads, module=name, op="add")

    def _times(self, rows: Part, factor: float, name: str) -> Part:
        if factor == 1.0:
            return rows
        return self._draft.add("combine", rows.width, {"left": rows}, module=name, factor=factor)

    def _capped(self, rows: Part, cap: float) -> Part:
        rows = self._times(rows, 1 / cap, "")
        rows = self._draft.add("combine", rows.width, {"left": rows}, activation="tanh")
        return self._times(rows, cap, "")

    def _rotate(self, rows: Part, heads: int, rope: Rope, name: str) -> Part:
        own, other, partner = self._rotation(rope)
        return self._draft.add(
            "rotate", rows.width, {"input": rows}, module=name, heads=heads,
            own=own, other=other, partner=partner,
        )  # fmt: skip

    def _rotation(self, rope: Rope) -> tuple[str, str, str]:
        """Returns the names of a rotation's tables; layers share them."""
        if id(rope) not in self._rotations:
            pairs, size = len(rope.inverse), self._decoder.head_dim
            angles = torch.arange(self._positions).float()[:, None] * rope.inverse
            cosine, sine = angles.cos() * rope.factor, angles.sin() * rope.factor
            rest = size - 2 * pairs
            own = torch.cat([cosine, cosine, torch.ones(self._positions, rest)], 1)
            other = torch.cat([-sine, sine, torch.zeros(self._positions, rest)], 1)
            index = torch.arange(size)
            partner = torch.where(index < pairs, index + pairs, index - pairs)
            partner = torch.where(index < 2 * pairs, partner, index).to(torch.int32)
            self._rotations[id(rope)] = (
                self._table(own), self._table(other), self._table(partner)
            )  # fmt: skip
        return self._rotations[id(rope)]

    def _table(self, table: torch.Tensor) -> str:
        """Returns the name of a table; equal tables share one."""
        same = (name for name, known in self._tables.items() if torch.equal(known, table))
        name = next(same, f"table.{len(self._tables)}")
        self._tables[name] = table
        self._draft.weights[name] = Recipe(sources=(name,), kind="table")
        return name

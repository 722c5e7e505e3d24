"""Kernel programs: instructions, weights, and the tokens of a step.

A program works on rows: the tokens of a step, of any sequences, or the rows of tensors that it
loads and stores. Rows are float32 in numbered buffers (rows, width). All instructions except
`Attend` process rows independently. Weights are named; `npu_ops.kernel_programs.weights` has their
layout in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args

__all__ = [
    "BLOCK_SLOTS",
    "Activation",
    "Append",
    "Attend",
    "Columns",
    "Combine",
    "Embed",
    "Experts",
    "Instruction",
    "Keep",
    "KernelProgram",
    "LayerShape",
    "Linear",
    "Load",
    "Norm",
    "NormOptions",
    "Recipe",
    "Rotate",
    "Rows",
    "Store",
]


Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "quick_gelu"]


@dataclass(frozen=True)
class Columns:
    """Columns `start` to `start + width` of a buffer."""

    buffer: int
    start: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Embed:
    """out = table[index] * scale, where index is the row's token or position.

    Attributes:
        out: (rows, width).
        table: a packed linear weight (entries, width), with the table's rows as outputs.
        index: the index to use: token or position.
        scale: factor of the result.
    """

    out: Columns
    table: str
    index: Literal["token", "position"] = "token"
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """Normalization: x / sqrt(mean(x^2) + eps) * weight, or LayerNorm's formula.

    Attributes:
        kind: "rms" or "layer".
        eps: added before the root.
        weight: (width / parts,) float32; None for ones.
        bias: (width / parts,) float32; None for zeros.
        parts: number of equal parts to normalize separately, each with this weight.
    """

    kind: Literal["rms", "layer"]
    eps: float
    weight: str | None = None
    bias: str | None = None
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class Norm:
    """out = normalized input; out may be the input.

    Attributes:
        input: (rows, width).
        out: (rows, width).
        options: formula and weights.
    """

    input: Columns
    out: Columns
    options: NormOptions


@dataclass(frozen=True, kw_only=True)
class Linear:
    """out = residual + factor * activation(norm(input) weight^T + bias).

    With `gated`, the weight's outputs are gate and up, see
    npu_ops.kernel_programs.program.Recipe.interleaved, and the formula is
    residual + factor * activation(gate) * up.

    Attributes:
        input: (rows, inputs).
        out: (rows, outputs); with `gated`, half of the weight's outputs. May be the residual, not
            the input.
        weight: a packed linear weight (outputs, inputs).
        bias: (outputs,) float32 in the weight's order; None for none.
        norm: normalization of the input; None for none.
        activation: None for none.
        gated: whether the weight has gate and up.
        residual: (rows, outputs), added; None for none.
        factor: multiplies before the residual is added.
        soft_cap: c tanh(y / c) of the result before the residual; None for none.
    """

    input: Columns
    out: Columns
    weight: str
    bias: str | None = None
    norm: NormOptions | None = None
    activation: Activation | None = None
    gated: bool = False
    residual: Columns | None = None
    factor: float = 1.0
    soft_cap: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rotate:
    """Rotary embedding in place: y[i] = own[p, i] x[i] + other[p, i] x[partner[i]] for each head.

    p is the row's position.

    Attributes:
        values: (rows, heads * size).
        heads: number of heads.
        own: (positions, size) float32.
        other: (positions, size) float32.
        partner: (size,) int32.
    """

    values: Columns
    heads: int
    own: str
    other: str
    partner: str


@dataclass(frozen=True, kw_only=True)
class Append:
    """Writes the row's keys and values into its sequence's cache.

    Attributes:
        keys: (rows, key heads * key size).
        values: (rows, key heads * value size).
        layer: layer index of the cache.
    """

    keys: Columns
    values: Columns
    layer: int


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Attention of each row over its sequence's slots up to its own, which must be appended before.

    Attributes:
        queries: (rows, heads * key size). Head h reads key head h // (heads / key heads).
        out: (rows, heads * value size).
        layer: layer index of the cache.
        heads: number of heads.
        scale: factor of the scores.
        window: number of slots that a row sees, including its own; None for all.
        soft_cap: c: scores become c tanh(score / c); None for none.
        sinks: (heads,) float32: an extra score per head, with value 0; None for none.
        slopes: (heads,) float32: slope * (slot - own slot) is added to the scores (ALiBi); None.
    """

    queries: Columns
    out: Columns
    layer: int
    heads: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: str | None = None
    slopes: str | None = None


@dataclass(frozen=True, kw_only=True)
class Combine:
    """out = factor * activation(left) op right.

    Attributes:
        out: (rows, width); may be an operand.
        left: (rows, width).
        op: "add", "mul"; "copy" for no right operand.
        right: columns (rows, width), or a weight (width,) float32; None with "copy".
        activation: None for none.
        factor: multiplies activation(left).
    """

    out: Columns
    left: Columns
    op: Literal["add", "mul", "copy"] = "copy"
    right: Columns | str | None = None
    activation: Activation | None = None
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Selects the rows with requested logits for the rest of the program: out[i] = input[kept[i]].

    Attributes:
        input: (rows, width).
        out: (kept rows, width), a buffer not written before.
    """

    input: Columns
    out: Columns


@dataclass(frozen=True, kw_only=True)
class Experts:
    """out = residual + sum of share * expert(input) over a row's chosen experts.

    Each expert is down(activation(gate(input)) * up(input)). The `chosen` highest scores select
    experts.

    Attributes:
        input: (rows, width).
        scores: (rows, experts), the router's logits.
        out: (rows, width); may be the residual, not the input.
        gate_up: one packed weight per expert, gate and up interleaved.
        down: one packed weight per expert.
        chosen: number of experts per row.
        shares: "softmax" over all scores; "softmax_normalized", divided by the sum over the chosen
            experts (equal to a softmax over these); or "sigmoid".
        activation: activation of the gate.
        gate_up_bias: one name per expert, (outputs,) float32; None for none.
        down_bias: one name per expert, (width,) float32; None for none.
        limit: for gpt-oss: gate is clamped to at most limit, up to -limit..limit, and the product
            is gate * sigmoid(1.702 gate) * (up + 1); None for the usual form.
        residual: added; None for none.
    """

    input: Columns
    scores: Columns
    out: Columns
    gate_up: tuple[str, ...]
    down: tuple[str, ...]
    chosen: int
    shares: Literal["softmax", "softmax_normalized", "sigmoid"]
    activation: Activation
    gate_up_bias: tuple[str, ...] | None = None
    down_bias: tuple[str, ...] | None = None
    limit: float | None = None
    residual: Columns | None = None


@dataclass(frozen=True, kw_only=True)
class Load:
    """out = the rows of an input tensor of the program.

    Attributes:
        out: (rows, width).
        argument: index of the tensor; a program loads 0, 1, ... in this order.
    """

    out: Columns
    argument: int


@dataclass(frozen=True, kw_only=True)
class Store:
    """The rows of an output tensor of the program = input.

    Attributes:
        input: (rows, width).
        result: index of the tensor; a program stores 0, 1, ... in this order.
    """

    input: Columns
    result: int


Instruction = (
    Embed | Norm | Linear | Rotate | Append | Attend | Combine | Keep | Experts | Load | Store
)


@dataclass(frozen=True)
class LayerShape:
    """The shape of a token in a layer's cache: keys (key_heads, key_size), values likewise."""

    key_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Recipe of a weight from the model's parameters.

    Attributes:
        sources: names of the source parameters, in order.
        kind: "linear": a packed linear weight with the concatenated outputs of the sources;
            "vector": the concatenated sources in float32; "table": made by the compiler, stored
            unchanged.
        transposed: whether the sources are (inputs, outputs).
        interleaved: whether the first half of the outputs is gate and the second is up; blocks of
            16 outputs of both then alternate.
        keeps_precision: whether a compressed model stores it in 8 bits rather than 4 (embedding and
            head, as nncf does).
        index: index along the first dimension of the only source, for stacked experts; None for the
            whole source.
        order: name of an int64 table: output i is output order[i] of the sources, before
            interleaving. None keeps the order.
        added: number added to each element, for vectors.
    """

    sources: tuple[str, ...]
    kind: str
    transposed: bool = False
    interleaved: bool = False
    keeps_precision: bool = False
    index: int | None = None
    order: str | None = None
    added: float = 0.0


@dataclass(frozen=True, kw_only=True)
class KernelProgram:
    """A step of a model, or a graph on tensors.

    Attributes:
        instructions: the instructions, in order. The last writes the logits, if any.
        widths: the width of each buffer.
        weights: recipe of each weight that the instructions name.
        layers: shape of each layer of the cache.
        logits: columns of the logits: (kept rows, vocabulary); None for a program on tensors.
        vocabulary: token ids are below this; 0 without logits.
        positions: positions are below this, the length of tables; None for no bound.
        modules: source module of each instruction, for reports; may be "".
    """

    instructions: tuple[Instruction, ...]
    widths: tuple[int, ...]
    weights: Mapping[str, Recipe]
    layers: tuple[LayerShape, ...]
    logits: Columns | None
    vocabulary: int
    positions: int | None = None
    modules: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-compatible values; `from_dict` is the inverse."""
        return {
            "instructions": [
                {"kind": type(one).__name__, **_plain(one)} for one in self.instructions
            ],
            "widths": list(self.widths),
            "weights": {name: _plain(recipe) for name, recipe in self.weights.items()},
            "layers": [_plain(layer) for layer in self.layers],
            "logits": _plain(self.logits),
            "vocabulary": self.vocabulary,
            "positions": self.positions,
            "modules": list(self.modules),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> KernelProgram:
        """Creates a program from the result of as_dict.

        Raises:
            KeyError: an instruction is unknown, or a field is missing.
            TypeError: a field is unknown.
        """
        return cls(
            instructions=tuple(_instruction(one) for one in content["instructions"]),
            widths=tuple(content["widths"]),
            weights={
                name: Recipe(**{**recipe, "sources": tuple(recipe["sources"])})
                for name, recipe in content["weights"].items()
            },
            layers=tuple(LayerShape(**layer) for layer in content["layers"]),
            logits=None if content["logits"] is None else Columns(**content["logits"]),
            vocabulary=content["vocabulary"],
            positions=content["positions"],
            modules=tuple(content["modules"]),
        )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


_KINDS = {kind.__name__: kind for kind in get_args(Instruction)}
_NORMS = ("norm", "options")


def _instruction(content: Mapping[str, Any]) -> Instruction:
    arguments: dict[str, Any] = {}
    for name, value in content.items():
        if name == "kind":
            continue
        if isinstance(value, Mapping):
            arguments[name] = NormOptions(**value) if name in _NORMS else Columns(**value)
        else:
            arguments[name] = tuple(value) if isinstance(value, list) else value
    made: Instruction = _KINDS[content["kind"]](**arguments)
    return made


BLOCK_SLOTS = 16  # block size: slots per block of the KV cache


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The tokens of a step, of any sequences: contiguous CPU tensors, or numpy arrays.

    Attributes:
        tokens: (rows,) int64, token ids.
        positions: (rows,) int64, indices of position embeddings.
        sequences: (rows,) int32, the row of block_tables of each token.
        slots: (rows,) int32, index in the sequence; slot s is in block
            block_tables[sequence, s // 16].
        block_tables: (sequences, most blocks) int32.
        kept: (kept,) int64, the rows to compute logits of.
        is_decode: whether each sequence has one row, its next token, so that sparse attention
            applies.
    """

    tokens: Any
    positions: Any
    sequences: Any
    slots: Any
    block_tables: Any
    kept: Any
    is_decode: bool = False

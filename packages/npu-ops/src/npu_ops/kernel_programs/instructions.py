"""The instructions of a kernel program.

A program works on rows: one for each token of a step, whichever sequence it belongs to; or those of
tensors, which it loads and stores. Rows have float32 values in numbered buffers (rows, width). Each
instruction but `Attend` treats every row by itself. Weights are named;
`npu_ops.kernel_programs.weights` says how they lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Activation",
    "Append",
    "Attend",
    "Columns",
    "Combine",
    "Embed",
    "Experts",
    "Instruction",
    "Keep",
    "Linear",
    "Load",
    "Norm",
    "NormOptions",
    "Rotate",
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
        table: a packed linear weight (entries, width), whose outputs are the table's rows.
        index: what chooses the entry.
        scale: a factor.
    """

    out: Columns
    table: str
    index: Literal["token", "position"] = "token"
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """How to normalize: x / sqrt(mean(x^2) + eps) * weight, or LayerNorm's formula.

    Attributes:
        kind: "rms" or "layer".
        eps: added before the root.
        weight: (width / parts,) float32; None for ones.
        bias: (width / parts,) float32; None for zeros.
        parts: how many pieces of equal width are normalized by themselves, each with this weight.
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
        options: how.
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
        out: (rows, outputs); with `gated` half as many as the weight has. May be the residual, not
            the input.
        weight: a packed linear weight (outputs, inputs).
        bias: (outputs,) float32 in the weight's order; None for none.
        norm: how the input is normalized first; None for not at all.
        activation: None for none.
        gated: see above.
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
        heads: how many.
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
        layer: of the cache.
    """

    keys: Columns
    values: Columns
    layer: int


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Attention of each row over its sequence's slots up to its own, which must be appended.

    Attributes:
        queries: (rows, heads * key size). Head h reads key head h // (heads / key heads).
        out: (rows, heads * value size).
        layer: of the cache.
        heads: how many.
        scale: factor of the scores.
        window: how many slots a row sees, its own included; None for all.
        soft_cap: c: scores become c tanh(score / c); None for none.
        sinks: (heads,) float32: one more score per head whose value is 0; None for none.
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
        out: (rows, width); may be one of the others.
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
    """From here on the rows are those whose logits were asked for: out[i] = input[kept[i]].

    Attributes:
        input: (rows, width).
        out: (kept rows, width), a buffer that nothing before it wrote.
    """

    input: Columns
    out: Columns


@dataclass(frozen=True, kw_only=True)
class Experts:
    """out = residual + the sum over a row's chosen experts of share * expert(input).

    Each expert is down(activation(gate(input)) * up(input)). The greatest `chosen` scores choose.

    Attributes:
        input: (rows, width).
        scores: (rows, experts), what the router gives.
        out: (rows, width); may be the residual, not the input.
        gate_up: one packed weight per expert, gate and up interleaved.
        down: one packed weight per expert.
        chosen: how many experts each row has.
        shares: "softmax": softmax over all scores, "softmax_normalized": that of the chosen
            divided by their sum (softmax over the chosen alone is the same), "sigmoid".
        activation: of the gate.
        gate_up_bias: one name per expert, (outputs,) float32; None for none.
        down_bias: one name per expert, (width,) float32; None for none.
        limit: gpt-oss: gate is clamped to at most limit, up to -limit..limit, and the product is
            gate * sigmoid(1.702 gate) * (up + 1); None for the usual form.
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
    """out = the rows of a tensor that the program is called with.

    Attributes:
        out: (rows, width).
        argument: which tensor; a program loads 0, 1, ... in this order.
    """

    out: Columns
    argument: int


@dataclass(frozen=True, kw_only=True)
class Store:
    """The rows of a tensor that the program returns = input.

    Attributes:
        input: (rows, width).
        result: which tensor; a program stores 0, 1, ... in this order.
    """

    input: Columns
    result: int


Instruction = (
    Embed | Norm | Linear | Rotate | Append | Attend | Combine | Keep | Experts | Load | Store
)

"""Kernel programs: their instructions and weights, and the tokens that a step runs on.

A program works on rows: one for each token of a step, of any sequence, or those of tensors, which
it loads and stores. Rows have float32 values in numbered buffers (rows, width). Each instruction
but `Attend` treats every row by itself. Weights are named; `npu_ops.kernel_programs.weights` has
their layout in memory.
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
    """Normalization: x / sqrt(mean(x^2) + eps) * weight, or LayerNorm's formula.

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


@dataclass(frozen=True)
class LayerShape:
    """The cached shape of a layer's token: keys (key_heads, key_size), values likewise."""

    key_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe of a weight.

    Attributes:
        sources: names of the parameters that it is made of, in order.
        kind: "linear": a packed linear weight whose outputs are those of the sources, one after the
            other; "vector": float32, the sources joined; "table": made by the compiler, stored as
            it is.
        transposed: whether the sources are (inputs, outputs).
        interleaved: whether the first half of the outputs is a gate and the second what it opens;
            blocks of 16 outputs of both then alternate: 16 of the gate, 16 of the other, and so on.
        keeps_precision: whether a compressed model stores it in 8 bits rather than 4 (embedding and
            head, as nncf does).
        index: which slice along the first dimension of the one source, for stacked experts; None
            for all of it.
        order: name of an int64 table: output i is output order[i] of the sources; applied before
            they are interleaved. None for their own order.
        added: a number that is added to each element, for vectors.
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
    """A step of a model, or a graph of tensors.

    Attributes:
        instructions: what runs, in order. The last writes the logits, if there are any.
        widths: the width of each buffer.
        weights: how each weight that the instructions name is made.
        layers: what each layer of the cache keeps.
        logits: where the logits are: (kept rows, vocabulary); None for a program that loads and
            stores its rows.
        vocabulary: token ids are below this; 0 without logits.
        positions: positions are below this, as tables end there; None for no bound.
        modules: for each instruction the module that it comes from, for reports; may be "".
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
        """Returns values that JSON can hold, from which `from_dict` makes the program again."""
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
        """Makes a program of what as_dict returned.

        Raises:
            KeyError: an instruction is not known, or a field is missing.
            TypeError: a field is not known.
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


BLOCK_SLOTS = 16  # how many slots of a sequence lie in one block of the cache


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The tokens of a step, of any number of sequences, all contiguous, tensors on cpu or numpy's.

    Attributes:
        tokens: (rows,) int64, the tokens' ids.
        positions: (rows,) int64, what position embeddings are chosen by.
        sequences: (rows,) int32, which row of block_tables each belongs to.
        slots: (rows,) int32, each row's place in its sequence; slot s lies in block
            block_tables[sequence, s // 16].
        block_tables: (sequences, most blocks) int32.
        kept: (kept,) int64, the rows whose logits are wanted.
        is_decode: whether each sequence has one row, the token that follows; sparse attention is
            for such steps.
    """

    tokens: Any
    positions: Any
    sequences: Any
    slots: Any
    block_tables: Any
    kept: Any
    is_decode: bool = False

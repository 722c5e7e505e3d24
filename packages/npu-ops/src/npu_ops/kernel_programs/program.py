"""KernelProgram: instructions, their buffers, and which weights they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from npu_ops.kernel_programs import instructions as kinds
from npu_ops.kernel_programs.instructions import Columns, Instruction, NormOptions

__all__ = ["KernelProgram", "LayerShape", "Recipe"]


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps of each token: keys (key_heads, key_size), values likewise."""

    key_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a weight is made.

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


_KINDS = {
    kind.__name__: kind
    for kind in (
        kinds.Embed, kinds.Norm, kinds.Linear, kinds.Rotate, kinds.Append, kinds.Attend,
        kinds.Combine, kinds.Keep, kinds.Experts, kinds.Load, kinds.Store,
    )
}  # fmt: skip
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

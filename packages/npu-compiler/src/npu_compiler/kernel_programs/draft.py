"""A program in the making: instructions on values, of which each is written once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from npu_ops.kernel_programs.program import Activation, Recipe

__all__ = ["Draft", "Line", "Part"]

LineKind = Literal[
    "embed",
    "norm",
    "linear",
    "rotate",
    "append",
    "attend",
    "combine",
    "keep",
    "experts",
    "select",
    "join",
    "load",
    "store",
]


@dataclass(frozen=True)
class Part:
    """Columns `start` to `start + width` of a value."""

    value: int
    start: int
    width: int


@dataclass(eq=False)
class Line:
    """One instruction.

    Attributes:
        kind: which; "select" are columns in an order of their own, which no instruction gives;
            "join" copies the parts that it reads side by side, each by an instruction.
        out: the value that it writes; -1 for none, also of a "rotate" that changes what it reads.
        reads: the parts that it reads, by name.
        fields: its other fields.
        module: the module that it comes from.
    """

    kind: LineKind
    out: int
    reads: dict[str, Part]
    fields: dict[str, Any] = field(default_factory=dict)
    module: str = ""

    @property
    def activation(self) -> Activation | None:
        """Its activation, if it has any."""
        found: Activation | None = self.fields.get("activation")
        return found


@dataclass
class Draft:
    """Lines in their order, and what they name.

    Attributes:
        lines: the instructions.
        widths: of each value.
        weights: how each weight is made.
        names: of these, by how they are made.
        results: values that are read after the last line.
        logits: the columns with the result.
    """

    lines: list[Line] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    weights: dict[str, Recipe] = field(default_factory=dict)
    names: dict[Recipe, str] = field(default_factory=dict)
    results: set[int] = field(default_factory=set)
    logits: Part = Part(-1, 0, 0)

    def value(self, width: int) -> int:
        """Returns a new value."""
        self.widths.append(width)
        return len(self.widths) - 1

    def whole(self, value: int) -> Part:
        """Returns all columns of a value."""
        return Part(value, 0, self.widths[value])

    def add(
        self, kind: LineKind, width: int, reads: dict[str, Part], *, module: str = "", **fields: Any
    ) -> Part:
        """Adds an instruction that writes a new value of a width, which is returned."""
        out = self.value(width)
        self.lines.append(Line(kind, out, reads, fields, module))
        return self.whole(out)

    def weight(self, recipe: Recipe) -> str:
        """Returns the name of a weight made so; equal recipes have one name."""
        if recipe not in self.names:
            name = f"{recipe.kind}.{len(self.weights)}"
            self.names[recipe] = name
            self.weights[name] = recipe
        return self.names[recipe]

    def redirect(self, value: int, place: Part) -> None:
        """Makes all readers of a value read other columns, which hold the same."""

        def moved(part: Part) -> Part:
            if part.value != value:
                return part
            return Part(place.value, place.start + part.start, part.width)

        for line in self.lines:
            line.reads = {name: moved(part) for name, part in line.reads.items()}
        self.results = {place.value if one == value else one for one in self.results}
        self.logits = moved(self.logits)

    def readers(self, value: int) -> list[Line]:
        """Returns the lines that read a value."""
        return [line for line in self.lines if any(p.value == value for p in line.reads.values())]

    def writer(self, value: int) -> Line:
        """Returns the line that writes a value first."""
        return next(line for line in self.lines if line.out == value)

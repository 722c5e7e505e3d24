"""Draft programs: instructions before their values are placed in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from npu_ops.kernel_programs.program import Activation, Recipe

__all__ = ["Draft", "Line", "Part", "keep_early", "place"]

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
    """One instruction."""

    # Kind of instruction. "select" permutes columns, which no instruction does; "join" concatenates
    # its parts, with one copy instruction for each.
    kind: LineKind
    out: int  # the written value; -1 for none, and for a "rotate" in place
    reads: dict[str, Part]  # the parts read, by name
    fields: dict[str, Any] = field(default_factory=dict)  # other fields
    module: str = ""  # the torch module of origin

    @property
    def activation(self) -> Activation | None:
        """The activation, or None."""
        found: Activation | None = self.fields.get("activation")
        return found


@dataclass
class Draft:
    """Lines in order, and the tables that they refer to."""

    lines: list[Line] = field(default_factory=list)  # the instructions
    widths: list[int] = field(default_factory=list)  # width of each value
    weights: dict[str, Recipe] = field(default_factory=dict)  # recipe of each weight
    names: dict[Recipe, str] = field(default_factory=dict)  # weights by recipe
    results: set[int] = field(default_factory=set)  # values read after the last line
    logits: Part = Part(-1, 0, 0)  # columns of the result

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
        """Adds an instruction that writes a new value with a width; returns the value."""
        out = self.value(width)
        self.lines.append(Line(kind, out, reads, fields, module))
        return self.whole(out)

    def weight(self, recipe: Recipe) -> str:
        """Returns the name of the weight with a recipe; equal recipes share a name."""
        if recipe not in self.names:
            name = f"{recipe.kind}.{len(self.weights)}"
            self.names[recipe] = name
            self.weights[name] = recipe
        return self.names[recipe]

    def redirect(self, value: int, place: Part) -> None:
        """Redirects all readers of a value to other columns with the same content."""

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
        """Returns the first line that writes a value."""
        return next(line for line in self.lines if line.out == value)


def keep_early(draft: Draft) -> None:
    """Drops rows without requested logits right after the last attention.

    Later lines treat each row separately, so only the kept rows need them.
    """
    keeps = [line for line in draft.lines if line.kind == "keep"]
    attends = [at for at, line in enumerate(draft.lines) if line.kind in ("attend", "append")]
    if len(keeps) != 1 or not attends:
        return
    (keep,) = keeps
    first = attends[-1] + 1
    last = draft.lines.index(keep)
    before = {line.out for line in draft.lines[:first]}
    after = draft.lines[first:last]
    written = {line.out for line in after}
    if any(
        part.value in before for line in draft.lines[last + 1 :] for part in line.reads.values()
    ):
        return  # a value is read in full and in part
    needed = {
        part.value
        for line in [*after, keep]
        for part in line.reads.values()
        if part.value in before
    }
    if keep.reads["input"].value not in written | needed:
        return
    moved: dict[int, int] = {}
    lines: list[Line] = []
    for value in sorted(needed):
        out = draft.value(draft.widths[value])
        moved[value] = out
        lines.append(Line("keep", out, {"input": draft.whole(value)}, {}, keep.module))

    def kept(part: Part) -> Part:
        return Part(moved.get(part.value, part.value), part.start, part.width)

    for line in after:
        line.reads = {name: kept(part) for name, part in line.reads.items()}
    source = kept(keep.reads["input"])
    draft.lines[first : last + 1] = [*lines, *after]
    draft.redirect(keep.out, source)


def place(draft: Draft, logits: Part) -> tuple[list[int], list[int]]:
    """Returns the buffer width of each value, and the width of each buffer.

    A buffer is reused after the last read of its value. The logits have a separate buffer.
    """
    last: dict[int, int] = {}
    for at, line in enumerate(draft.lines):
        for part in line.reads.values():
            last[part.value] = at
        if line.out >= 0:
            last.setdefault(line.out, at)
    last[logits.value] = len(draft.lines)
    buffers = [-1] * len(draft.widths)
    widths: list[int] = []
    free: list[int] = []
    for at, line in enumerate(draft.lines):
        ending = {part.value for part in line.reads.values() if last[part.value] == at}
        if line.out >= 0 and buffers[line.out] < 0:
            reused = _in_place(draft, line, ending)
            if line.out == logits.value:
                reused = None
            if reused is not None:
                buffers[line.out] = buffers[reused]
                ending.discard(reused)
            else:
                buffers[line.out] = _take(
                    free, widths, draft.widths[line.out], is_own=line.out == logits.value
                )
        free += [buffers[value] for value in ending]
        if line.out >= 0 and last[line.out] == at and line.out != logits.value:
            free.append(buffers[line.out])
    return buffers, widths


def _in_place(draft: Draft, line: Line, ending: set[int]) -> int | None:
    """Returns a value that is last read here, so that the result can reuse its buffer."""
    names = {"linear": ["residual"], "experts": ["residual"], "combine": ["left", "right"]}
    for name in names.get(line.kind, []):
        part = line.reads.get(name)
        if part is None or part.value not in ending or part != draft.whole(part.value):
            continue
        if part.width != draft.widths[line.out]:
            continue
        if line.kind != "combine" and line.reads["input"].value == part.value:
            continue
        return part.value
    return None


def _take(free: list[int], widths: list[int], width: int, *, is_own: bool) -> int:
    fitting = [one for one in free if widths[one] >= width] if not is_own else []
    if fitting:
        chosen = min(fitting, key=lambda one: widths[one])
        free.remove(chosen)
        return chosen
    widths.append(width)
    return len(widths) - 1

"""Draws mutations of the five packages with a seed: Python by cosmic-ray's operators, C++ by ours.

A mutation is one changed line. Its text before and after is stored, so that a table still applies
if other lines of the file have moved.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON_SHARE = 0.75  # of all mutations; the rest is C++
NEEDING_ARGUMENTS = ("core/VariableInserter", "core/VariableReplacer")


@dataclass(frozen=True)
class Mutation:
    """One changed line of one source file."""

    number: int
    file: str
    line: int
    operator: str
    before: str
    after: str

    @property
    def is_native(self) -> bool:
        """Whether the line is C++, which a switch in an instrumented build selects."""
        return not self.file.endswith(".py")


def read(table: Path) -> list[Mutation]:
    """Returns the mutations of a table written by `write`."""
    return [Mutation(**row) for row in json.loads(table.read_text())]


def write(table: Path, mutations: list[Mutation]) -> None:
    """Writes mutations as JSON."""
    table.write_text(json.dumps([asdict(mutation) for mutation in mutations], indent=1) + "\n")


def draw(seed: int, count: int) -> list[Mutation]:
    """Draws `count` mutations; each mutable line of a language is equally probable."""
    chance = random.Random(seed)
    python = sorted(ROOT.glob("packages/*/src/**/*.py"))
    native = sorted([*ROOT.glob("packages/*/csrc/**/*.cpp"), *ROOT.glob("packages/*/csrc/**/*.h")])
    wanted = round(count * PYTHON_SHARE)
    chosen = [*_chosen(chance, python, wanted, _python_changes)]
    chosen += _chosen(chance, native, count - wanted, _native_changes)
    return [Mutation(number, *fields) for number, fields in enumerate(chosen)]


Change = tuple[int, str, str, str]  # line, operator, text before, text after
Changes = Callable[[str, int], list[Change]]  # of a file's text and a line's number


def _chosen(
    chance: random.Random,
    files: list[Path],
    count: int,
    changes_of: Changes,
) -> Iterator[tuple[str, int, str, str, str]]:
    lines = [len(file.read_text().splitlines()) for file in files]
    found = 0
    while found < count:
        (file,) = chance.choices(files, weights=lines)
        text = file.read_text()
        number = chance.randrange(1, len(text.splitlines()) + 1)
        changes = sorted(change for change in changes_of(text, number) if change[2] != change[3])
        if changes:
            found += 1
            yield str(file.relative_to(ROOT)), *chance.choice(changes)


def _python_changes(text: str, line: int) -> list[Change]:
    """Returns the changes of a line by cosmic-ray's operators, without annotations and imports."""
    from cosmic_ray.ast import get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    if line in _declaring_lines(text):
        return []
    source, tree = text.splitlines(), get_ast(text)
    found = []
    for name in sorted(operator_names()):
        if name in NEEDING_ARGUMENTS:
            continue
        operator = get_operator(name)()
        positions = [span for node in _walk(tree) for span in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            if not start[0] <= line <= end[0]:
                continue
            changed = (mutate_code(text, operator, occurrence) or text).splitlines()
            pairs = list(zip(source, changed, strict=False))
            differing = [i + 1 for i, (one, other) in enumerate(pairs) if one != other]
            if len(changed) == len(source) and differing == [line] and _is_valid(changed):
                found.append((line, name.removeprefix("core/"), *pairs[line - 1]))
    return found


def _is_valid(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def _walk(node: Any) -> Iterator[Any]:
    """Yields the nodes of a parso tree in cosmic-ray's order."""
    yield node
    for child in getattr(node, "children", ()):
        yield from _walk(child)


def _declaring_lines(text: str) -> set[int]:
    """Returns the lines of annotations, imports and `if TYPE_CHECKING`, which do not run."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts += node.body
        for part in parts:
            if part is not None:
                lines |= set(range(part.lineno, part.end_lineno + 1))
    return lines


_OPERAND = r"[A-Za-z_][\w.\->\[\]]*(?:\(\))?|\d+"
_COMPARED = re.compile(rf"(?<=[(;&| ])({_OPERAND}) (<|<=|>|>=|==|!=) ({_OPERAND})(?= ?[);&|?])")
_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_CONDITION = re.compile(r"^(\s*(?:\} else )?if \()((?:[^()=;]|==|[<>!]=|\([^()]*\))+)(\) .*)$")
_NUMBER = re.compile(r"(?<![\w.\[<])(\d+)(?![\w.\]>])")
_STATEMENT = re.compile(r"^(\s+)((?:[a-z_][\w.\->]*(?:\[[^\]]*\])?(?: [-+*|]?= .*|\(.*\)));)$")


def _native_changes(text: str, line: int) -> list[Change]:
    """Returns the changes of a C++ line that one conditional expression can switch."""
    before = text.splitlines()[line - 1]
    code = before.split("//")[0].rstrip()
    if not code.startswith(" ") or re.search(
        r"constexpr|static_assert|case |#|template|enum", code
    ):
        return []
    found: list[Change] = []

    def add(operator: str, after: str) -> None:
        found.append((line, operator, before, after))

    quoted = [match.span() for match in re.finditer(r'"(?:[^"\\]|\\.)*"', code)]

    def outside(match: re.Match[str]) -> bool:
        return not any(start <= match.start() < end for start, end in quoted)

    for match in filter(outside, _COMPARED.finditer(code)):
        left, sign, right = match.groups()
        switch = f"(MUTANT ? {left} {_OTHER[sign]} {right} : {left} {sign} {right})"
        add(f"Compare_{sign}", code[: match.start()] + switch + code[match.end() :])
    if condition := _CONDITION.match(code):
        add("NegateCondition", f"{condition[1]}({condition[2]}) != MUTANT{condition[3]}")
    if ";" in code or "return" in code:
        for match in filter(outside, _NUMBER.finditer(code)):
            switch = f"(MUTANT ? {int(match[1]) + 1} : {match[1]})"
            add("Number", code[: match.start()] + switch + code[match.end() :])
    if (statement := _STATEMENT.match(code)) and not re.match(r"\s+(return|break|delete)\b", code):
        add("DropStatement", f"{statement[1]}if (!MUTANT) {statement[2]}")
    return found

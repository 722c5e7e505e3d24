"""Verdicts of our rules and of the NPU's compiler on a program, and the surveys' files."""

from __future__ import annotations

import functools
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "TARGETS",
    "Row",
    "Verdicts",
    "ask",
    "compiler_name",
    "judge",
    "read_rows",
    "refusals",
    "short",
    "survey_into",
    "targets_of",
    "totals",
    "verdict_of",
]

TARGETS = ("4000", "5010")
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on one program.

    Attributes:
        broken: rules that the unchanged program violates.
        left: rules that it violates after rewriting to equal forms.
        is_rewritten: whether anything was rewritten.
        as_is: the compiler's reason by target, "" if it accepts the unchanged program.
        given: the same for the program that an NPU would run.
    """

    broken: tuple[str, ...]
    left: tuple[str, ...]
    is_rewritten: bool
    as_is: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> str:
        """The rules' verdict: "whole", "rewritten" or "refused"."""
        return "refused" if self.left else "rewritten" if self.is_rewritten else "whole"


@dataclass(frozen=True)
class Row:
    """The result of one program.

    Attributes:
        name: name of the model or the operator.
        program: "decode" or "prefill" of a model, the call of an operator; "" for a model without.
        verdicts: None for a model without programs.
        reason: why there are no programs.
    """

    name: str
    program: str
    verdicts: Verdicts | None
    reason: str = ""


def judge(model: Any, targets: Iterable[str]) -> Verdicts:
    """Judges a program unchanged and with equal forms; changes it.

    Args:
        model: a program with static shapes.
        targets: targets of the compiler; empty skips it.
    """
    from npu_compiler.npu_rules.rewriting import rewrite_for_npu
    from npu_compiler.npu_rules.source_rules import GENERATIONS

    targets = tuple(targets)
    broken = refusals(model)
    as_is = ask(model, targets)
    if not rewrite_for_npu(model, generation=GENERATIONS[-1]):
        return Verdicts(broken, broken, False, as_is, as_is)
    return Verdicts(broken, refusals(model), True, as_is, ask(model, targets))


def ask(model: Any, targets: Iterable[str]) -> dict[str, str]:
    """Returns the compiler's reason for a refusal by target, "" if it accepts the program."""
    reports = {target: _compiler().compile(model, target) for target in targets}
    return {target: report.reason for target, report in reports.items()}


def compiler_name() -> str:
    """Returns the compiler with its version, for a page."""
    return f"Intel's NPU compiler {_compiler().version}"


def targets_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """Returns the targets with verdicts, sorted."""
    return tuple(sorted({target for row in rows if row.verdicts for target in row.verdicts.given}))


def verdict_of(verdicts: Verdicts, target: str | None) -> str:
    """Returns the compiler's verdict for a target in a word; without one, the rules'."""
    if target is None:
        return verdicts.rules
    reason = verdicts.given.get(target)
    return "not asked" if reason is None else "refused" if reason else "accepted"


def totals(rows: Sequence[Row]) -> str:
    """Returns one line of a list for the rules and one for each target."""
    lines = []
    for target in (None, *targets_of(rows)):
        counts = Counter(verdict_of(row.verdicts, target) for row in rows if row.verdicts)
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        title = "Rules" if target is None else f"Compiler, NPU {target}"
        lines.append(f"- {title}: {counts.total()} programs: {parts}")
    return "\n".join(lines)


def survey_into(
    kept: Path,
    entries: Iterable[str],
    work: Callable[[Iterator[str]], Iterator[tuple[str, list[Row] | None, float]]],
) -> dict[str, list[Row]]:
    """Surveys the entries that a file lacks, and adds them to it.

    Args:
        kept: file with a line of JSON for each entry.
        entries: names of the entries.
        work: yields each name with its rows, or None if its process crashed, and its seconds.

    Returns:
        The rows of each entry in the file, by its name.
    """
    kept.touch()
    done = read_rows(kept)
    for name, rows, spent in work(name for name in entries if name not in done):
        done[name] = rows or []
        print(f"{name}: {'its process died' if rows is None else len(rows)} ({spent:.1f} s)")
        with kept.open("a") as file:
            fields = [asdict(row) for row in done[name]]
            file.write(json.dumps({"entry": name, "died": rows is None, "rows": fields}) + "\n")
    return done


def read_rows(kept: Path) -> dict[str, list[Row]]:
    """Returns the results of earlier runs: the rows of each entry, by name."""
    lines = kept.read_text().splitlines()
    return {
        (entry := json.loads(line))["entry"]: [_row(row) for row in entry["rows"]] for line in lines
    }


def _row(fields: Mapping[str, Any]) -> Row:
    found = fields["verdicts"]
    if found is None:
        return Row(**fields)
    tuples = {name: tuple(found[name]) for name in ("broken", "left")}
    return Row(**{**fields, "verdicts": Verdicts(**{**found, **tuples})})


def refusals(model: Any) -> tuple[str, ...]:
    """Returns the rules that the unchanged program violates, each with the operation."""
    from npu_compiler.npu_rules.operations import check_operations, check_whole_program
    from npu_compiler.npu_rules.source_rules import GENERATIONS

    found = [*check_whole_program(model), *check_operations(model, generation=GENERATIONS[-1])]
    refused = (finding for finding in found if finding.verdict == "refused")
    names = (f"{one.operation}, {one.rule}".removeprefix(", ") for one in refused)
    return tuple(dict.fromkeys(names))


def short(reason: str) -> str:
    """Returns a reason shortened for a table cell."""
    return textwrap.shorten(reason.replace("\0", " "), 200, placeholder=" …")


@functools.cache
def _compiler() -> Any:
    """One per process; a compiler crash does not end it."""
    from npu_compiler.target_compiler import target_compiler
    from npu_compiler.target_compiler.vcl_process import Limits

    return target_compiler(limits=Limits(duration_s=_LIMIT_S))

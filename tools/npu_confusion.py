"""Writes docs/reference/npu-confusion.md: disagreements of our rules and the NPU's compiler.

`python tools/npu_confusion.py FILE ...` reads the surveys' results (tools/npu_program_survey.py,
tools/npu_survey.py). The corrections are in npu_rules/corrections.json.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npu_verdicts import Row, read_rows, short

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/npu-confusion.md"
CORRECTIONS = ROOT / "packages/npu-compiler/src/npu_compiler/npu_rules/corrections.json"

_HEAD = """# Rules and compiler

`npu-compiler check` judges a model in two ways. The rules are immediate; they come from the source
of the NPU's compiler of 2024. The compiler itself, with `--target`, takes seconds. This page lists
the operations on which the two disagreed, and the corrections. No NPU was involved. `python
tools/npu_confusion.py` writes this page.

The compilers are from two releases of OpenVINO:

{compilers}

Checks follow the newest compiler. Rewriting follows the oldest, because a driver may have an older
compiler than this page, and the newest also accepts the rewritten forms. Operations that the newest
refuses are rewritten for all.

## Corrected rules

| Operation | Source of 2024 | Compiler | Seen in |
|---|---|---|---|
"""
_AFTER = """
The rules deliberately refuse two things that the compiler accepts: float64, which it computes in
float16, and boolean masks of ScaledDotProductAttention, which the pass before the import inverts.

## Programs

The rule for masks is coarser than the compiler, which accepts a bias for each head (T5) in some
programs. The replaced form has the same values. The compiler crashes on a batch of five dimensions
that is broadcast with a size of 1 between others (LogSoftmax along the second). It refuses means of
rows of one image with padding rounded up, some gradients of transposed 3-D convolutions, and some
grouped convolutions with dilation. The rules do not cover these yet. RWKV and xLSTM unroll a
recurrence into thousands of operations; their compilation was stopped after 120 s on two loaded
cores.

The remaining disagreements with the corrected rules, on the original programs, before refused
operations are rewritten. A program counts once for each generation.

| Survey | NPU | Both accept | Both refuse | Only rules refuse | Only compiler refuses |
|---|---|---|---|---|---|
"""
_GIVEN = """
Programs for an NPU that the rules accept after rewriting:

| Survey | NPU | Programs | Accepted by the compiler |
|---|---|---|---|
"""
# Description of each form of a correction.
_CONDITIONS = {
    "elements": "refused without elements",
    "kernel_fits": "refused if the kernel of a mean without padding is larger than the input",
    "alike_pieces": "refused in a batch of four dimensions, for pieces of one tensor that are "
    "multiplied by different numbers (rotary embeddings); rewritten",
    "whole_mask": "refused in a batch, with a mask for each head of all sequences, or with "
    "repeated heads and a mask for each sequence; rewritten",
}


def main(arguments: Sequence[str]) -> int:
    """Writes the page from the surveys' files."""
    surveys = {Path(name).stem: read_rows(Path(name)) for name in arguments}
    content = json.loads(CORRECTIONS.read_text())
    compilers = "\n".join(
        f"- {name}: `{version}`" for name, version in content["compilers"].items()
    )
    text = _HEAD.format(compilers=compilers)
    for row in content["rows"]:
        for operation, before, after in _differences(row):
            text += f"| {operation} | {before} | {after} | {row.get('seen', row['release'])} |\n"
    text += _AFTER
    for name, found in surveys.items():
        for target, counts in _as_is(_rows(found)):
            both = [(False, False), (True, True), (True, False), (False, True)]
            text += f"| {name} | {target} | {' | '.join(str(counts[one]) for one in both)} |\n"
    text += _GIVEN
    for name, found in surveys.items():
        for target, accepted, total in _given(_rows(found)):
            share = 100 * accepted / total
            text += f"| {name} | {target} | {total} | {accepted} ({share:.1f} %) |\n"
    lines = [line for found in surveys.values() for line in _told(_rows(found))]
    text += "\nDisagreements by program:\n\n" + "".join(f"- {one}\n" for one in lines or ["none"])
    PAGE.write_text(text)
    return 0


def _rows(found: dict[str, list[Row]]) -> list[Row]:
    rows = {(row.name, row.program): row for rows in found.values() for row in rows}
    return [row for row in rows.values() if row.verdicts]


def _differences(row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for one in row.get("operations", ()):
        yield f"{one['type']} ({one['opset']})", "refused", "accepted"
    if "types" in row:
        yield ", ".join(row["layers"]), f"refused: {', '.join(row['types'])}", "accepted"
    if "variable" in row:
        what = ", ".join(row["variable"])
        yield ", ".join(row["layers"]), f"refused: {what} that is no constant", "accepted"
    if "drop" in row:
        given = {key: value for key, value in row["drop"].items() if key != "operations"}
        what = ", ".join(f"{key} {value}" for key, value in given.items()) or "ranks"
        yield ", ".join(row["drop"].get("operations", ("all",))), f"condition: {what}", "none"
    for one in row.get("conditions", ()):
        yield ", ".join(one["operations"]) or "all", "accepted", _condition(one)


def _condition(row: dict[str, Any]) -> str:
    for key, words in _CONDITIONS.items():
        if key in row:
            return words
    if "refused" in row:
        return f"refused: {row['refused'].rstrip('.')}"
    if "most_dimensions" in row:
        return f"refused past {row['most_dimensions']} dimensions"
    if "types" in row:
        return f"input {row['input']} refused unless {', '.join(row['types'])}"
    return f"input {row['input']} refused unless it is a constant"


def _as_is(rows: Sequence[Row]) -> Iterator[tuple[str, Counter[tuple[bool, bool]]]]:
    """Returns whether the rules refuse, and whether the compiler does, by target."""
    for target in sorted({target for row in rows for target in row.verdicts.as_is}):
        judged = [row.verdicts for row in rows if target in row.verdicts.as_is]
        yield target, Counter((bool(one.broken), bool(one.as_is[target])) for one in judged)


def _given(rows: Sequence[Row]) -> Iterator[tuple[str, int, int]]:
    for target in sorted({target for row in rows for target in row.verdicts.given}):
        taken = [row.verdicts.given for row in rows if not row.verdicts.left]
        reasons = [given[target] for given in taken if target in given]
        yield target, reasons.count(""), len(reasons)


def _told(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for target, reason in row.verdicts.as_is.items():
            if bool(reason) != bool(row.verdicts.broken):
                words = short(f'compiler: "{reason}"' if reason else "; ".join(row.verdicts.broken))
                name = f"{row.name}, {row.program}"
                yield f"{name}, NPU {target}: {words if reason else f'rules: {words}'}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

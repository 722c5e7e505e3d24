"""Writes docs/reference/rockchip.md from the suites' CSV files.

`python write_page.py --models FILE... --operators FILE... -o PAGE`. The files come from `python -m
npu_compiler.suite --csv` and `npu-ops conformance --report csv`; those of `--modules`, `--graphs`
and `--int8` from `judge_modules.py`, `python -m npu_compiler.fuzz --out` and `judge_int8.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_DEFECTS = Path(__file__).parent / "src/npu_target_rockchip/known_defects.toml"
_HEAD = """# Models on Rockchip's NPU

Made by `examples/rockchip_target/write_page.py` from results of the suites that judge any device,
with `NPU_COMPILE_TARGET=rk3588`. rknn-toolkit2 2.5.0 compiled, and its simulator computed; **no
board was involved**.
[Bring a chip's compiler](../guides/chip-compiler.md) has the commands.
"""
_MODELS = """
## Architectures

Small models with random weights. *Error* is the largest difference from float32 on the CPU, over
the largest magnitude of the result. A model is right within eight roundings of float16 (8e-3), or
within three times the error of torch's own float16 on the CPU. Calls that the chip does not take
run on the host.

{right} of {all} are right, {whole} of them as one program.

| Model | Family | Error | Calls in programs | Programs | Host calls, the first reasons |
|---|---|---|---|---|---|
"""
_OPERATORS = """
## Operators

Cases of `npu-ops conformance --compiled` in float16: {judged:,} of {all:,} became a program, and
{right:,} of these are right ({share:.1f} %). Of {ops} operators with a program, {good} are right
throughout. The others:

| Operator | Wrong | First difference |
|---|---|---|
"""
_REFUSED = """
### Cases without a program

| Reason | Cases |
|---|---|
"""
_MODULES = """
## Modules

Up to three samples of each of torch's {all} modules, in evaluation mode: {right} are right in all
samples, {whole} of them without a call on the host. The others:

| Module | Right | Detail |
|---|---|---|
"""
_GRAPHS = """
## Random graphs

`python -m npu_compiler.fuzz --target rk3588`: {graphs:,} graphs, {programs:,} programs, {lowered:,}
of {nodes:,} calls in them, {findings:,} findings.

| Finding: how it ends, calls that are needed, inputs | Graphs |
|---|---|
"""
_INT8 = """
## int8

Accuracy on {images} generated images, with weights trained on {train} others; {calibration} images
calibrate.

| Model | float32, CPU | float16 | int8 | Same class as float32, int8 |
|---|---|---|---|---|
"""


def models(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines of the architectures."""
    finished = [row for row in rows if row["finished"] == "True"]
    right = [row for row in finished if _is_right(row)]
    whole = sum(row["lowered"] == row["nodes"] and row["programs"] == "1" for row in right)
    yield _MODELS.format(right=len(right), all=len(rows), whole=whole)
    for row in sorted(rows, key=lambda one: (one["family"], one["name"])):
        if row not in finished:
            detail = f"not finished: {_cell(row['detail'])}"
            yield f"| `{row['name']}` | {row['family']} | | | | {detail} |\n"
            continue
        own = float(row["rounding"])
        mark = f" (torch's float16: {own:.1e})" if own else ""
        mark += "" if row in right else " **wrong**"
        yield (
            f"| `{row['name']}` | {row['family']} | {float(row['error']):.1e}{mark} | "
            f"{row['lowered']} of {row['nodes']} | {row['programs']} | {_cell(row['detail'])} |\n"
        )


def _is_right(row: dict[str, str]) -> bool:
    error, bound, rounding = (float(row[key]) for key in ("error", "bound", "rounding"))
    return error <= max(bound, 3 * rounding) and rounding <= 0.1


def operators(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines of the operators: wrong ones, and the reasons of cases without a program."""
    judged = [row for row in rows if row["outcome"] != "empty"]
    by_op: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in judged:
        by_op[row["subject"]].append(row)
    wrong = {
        op: bad
        for op, own in by_op.items()
        if (bad := [r for r in own if r["outcome"] != "passed"])
    }
    right = len(judged) - sum(map(len, wrong.values()))
    yield _OPERATORS.format(
        judged=len(judged),
        all=len(rows),
        right=right,
        share=100 * right / max(1, len(judged)),
        ops=len(by_op),
        good=len(by_op) - len(wrong),
    )
    for op, bad in sorted(wrong.items()):
        detail = _cell(bad[0]["detail"] or bad[0]["outcome"])
        yield f"| `{op}` | {len(bad)} of {len(by_op[op])} | {detail} |\n"
    yield _REFUSED
    reasons = Counter(_reason(row["detail"]) for row in rows if row["outcome"] == "empty")
    for reason, count in reasons.most_common(25):
        yield f"| `{_cell(reason)}` | {count} |\n"


def _reason(detail: str) -> str:
    text = detail.partition("]: ")[2] or detail
    if "onnxruntime" in text and "_sess.run" in text:
        return "onnxruntime: an error without a reason"
    text = text.partition(". Register")[0]
    text = text.partition("refuses it: ")[2] or text
    if found := re.match(r"torch.onnx: Error when translating node %(\w+)", text):
        return f"torch.onnx: cannot translate {found[1].strip('_')}"
    noise = r"Traceback \(most recent call last\):? ?|\bValueError: |RKNN: |\[[\d:.]+N\] "
    text = re.sub(noise, "", text).strip()
    if text.endswith(":"):
        return f"{text} an error without a reason"
    if found := re.search(r"\w*support \w+ type|\w+Error: .*|\[ONNXRuntimeError\][^,]*", text):
        text = found[0]
    return re.sub(r"0x[0-9a-f]+|\b\d{3,}", "N", text).strip(": ")[:140]


def modules(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines of the modules."""
    tried = [row for row in rows if row["samples"] != "0"]
    right = [row for row in tried if row["right"] == row["samples"]]
    whole = sum(row["lowered"] == row["calls"] for row in right)
    yield _MODULES.format(all=len(tried), right=len(right), whole=whole)
    for row in tried:
        if row not in right:
            counts = f"{row['right']} of {row['samples']}"
            yield f"| `{row['name']}` | {counts} | {_cell(row['detail'])} |\n"


def graphs(ledger: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of random graphs."""
    totals = {name: ledger["counts"][f"total: {name}"] for name in ("programs", "lowered", "nodes")}
    findings = ledger["defects"]
    yield _GRAPHS.format(graphs=ledger["graphs"], findings=sum(findings.values()), **totals)
    yield from (f"| {_cell(name)} | {count} |\n" for name, count in sorted(findings.items()))


def int8(found: dict[str, object]) -> Iterator[str]:
    """Yields the lines of int8."""
    yield _INT8.format(**found)
    rows: Iterable[list[str]] = found["rows"]  # type: ignore[assignment]
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


def defects() -> Iterator[str]:
    """Yields the lines of the compiler's known defects."""
    yield "\n## Known defects of the compiler\n\n| Release | Defect | Handling |\n|---|---|---|\n"
    for one in tomllib.loads(_DEFECTS.read_text())["defects"]:
        yield f"| {one['release']} | {one['reason']} | {_cell(one['handled'])} |\n"


def _cell(text: str) -> str:
    short = re.sub(r"\bnpu_compiler\.(\w+)\.default", r"\1", " ".join(text.split()))
    return (short[:157].rpartition(" ")[0] + " ..." if len(short) > 160 else short).replace(
        "|", "\\|"
    )


def _read(files: Iterable[Path]) -> list[dict[str, str]]:
    return [row for file in files for row in csv.DictReader(file.read_text().splitlines())]


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, nargs="*", default=[])
    parser.add_argument("--operators", type=Path, nargs="*", default=[])
    parser.add_argument("--modules", type=Path, nargs="*", default=[])
    parser.add_argument("--graphs", type=Path, metavar="LEDGER")
    parser.add_argument("--int8", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    lines = [_HEAD]
    if given.models:
        lines += models(_read(given.models))
    if given.operators:
        lines += operators(_read(given.operators))
    if given.modules:
        lines += modules(_read(given.modules))
    if given.graphs:
        lines += graphs(json.loads(given.graphs.read_text()))
    if given.int8:
        lines += int8(json.loads(given.int8.read_text()))
    lines += defects()
    given.output.write_text("".join(lines))


if __name__ == "__main__":
    main()

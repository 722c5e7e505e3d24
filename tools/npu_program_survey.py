"""Checks static programs of language models and programs of single ops; writes their page.

`python tools/npu_program_survey.py` builds each decoder of tools/decoder_table.py as the static
pipeline does, one program for a token and one for a prompt, and lowers each call of torch's
database of operators that npu_ops would hand to a program. Each program is compared with the rules
of the NPU's compiler as it is, and again with equal forms of what they refuse.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoder_survey import first_line, in_processes, make
from decoder_table import DECODERS

PAGE = Path(__file__).parent.parent / "docs/reference/npu-programs.md"

_HEAD = """# Language models' steps on an NPU

Programs operation by operation, against rules that were read from the source of the NPU's compiler:
`{repository}` at commit `{commit}` ({date}). No NPU was involved. `python
tools/npu_program_survey.py` makes this page. *Whole*: no operation of the program breaks a rule.
*Rewritten*: none does when equal forms stand for what is refused. *Refused*: an operation breaks
the rule that is named.

"""
_STEPS_HEAD = """## Static programs of language models

Small models of {models} decoders of transformers with random weights, as the static pipeline builds
them: one program for a token, one for a piece of a prompt. {without} of these have no static
programs, for the reason that is given, and run as [Which decoders run](decoders.md) says.

{totals}

| Model | Program | 3720 | 4000 | What is in the way |
|---|---|---|---|---|
"""
_OPS_HEAD = """
## Programs of single operators

Calls that torch's database of operators makes, in float32 and float16 with gradients, of the {ops}
operators that `npu-ops` may hand to a program. Calls that no program computes are not counted.

{totals}

| Operator | Calls | 3720 | 4000 | What is in the way |
|---|---|---|---|---|
"""
_VERDICTS = ("whole", "rewritten", "refused")


@dataclass(frozen=True)
class Row:
    """What became of one program.

    Attributes:
        name: of the model or the operator.
        program: "decode" or "prefill" of a model, the call of an operator; "" for a model without.
        verdicts: one for each generation.
        reasons: rules that are broken before anything is rewritten, or why there is no program.
    """

    name: str
    program: str
    verdicts: tuple[str, ...]
    reasons: tuple[str, ...]


def judge(name: str, program: str, model: Any) -> Row:
    """Compares a program with the rules, as it is and rewritten; changes it."""
    from npu_compiler.npu_rules.operations import check_operations
    from npu_compiler.npu_rules.rewriting import rewrite_for_npu
    from npu_compiler.npu_rules.source_rules import GENERATIONS
    from npu_compiler.npu_rules.whole_programs import check_whole_program

    def refusals(generation: str) -> list[str]:
        found = [*check_whole_program(model), *check_operations(model, generation=generation)]
        refused = (finding for finding in found if finding.verdict == "refused")
        return [f"{one.operation}, {one.rule}".removeprefix(", ") for one in refused]

    before = [refusals(generation) for generation in GENERATIONS]
    if any(before):
        rewrite_for_npu(model, generation=GENERATIONS[-1])
    verdicts = tuple(
        "whole" if not refused else "refused" if refusals(generation) else "rewritten"
        for generation, refused in zip(GENERATIONS, before, strict=True)
    )
    reasons = dict.fromkeys(reason for refused in before for reason in refused)
    return Row(name, program, verdicts, tuple(reasons))


def survey_decoder(name: str) -> list[Row]:
    """Returns the rows of one decoder's static programs."""
    warnings.simplefilter("ignore")
    from npu_llm.entries.load_options import LoadOptions
    from npu_llm.entries.readiness import static_programs
    from npu_runtime.errors import NpuError

    with tempfile.TemporaryDirectory(prefix="npu-survey-") as place:
        make(name).save_pretrained(place)
        options = LoadOptions(dtype="float32", cache_dir=Path(place) / "cache")
        steps = zip(("decode", "prefill"), static_programs(place, options), strict=True)
        try:
            return [judge(name, step, program.model) for step, program in steps]
        except NpuError as refusal:
            return [Row(name, "", (), (first_line(refusal),))]


def survey_ops() -> list[Row]:
    """Returns one row for each signature that the database of operators hands to a program."""
    warnings.simplefilter("ignore")
    os.environ["NPU_OPS_VARIANT"] = "program"
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from npu_compiler import single_op
    from npu_compiler.errors import LoweringError

    rows: dict[str, Row] = {}
    lower_op = single_op.lower_op

    def lowered(call: Any) -> Any:
        made = lower_op(call)
        op, _, signature = str(call).partition(" ")
        rows[str(call)] = judge(op, signature, made.model)
        raise LoweringError("Cannot lower: surveyed.", "cannot-lower", reason="surveyed")

    single_op.lower_op = lowered
    for entry in op_db:
        for dtype in (torch.float32, torch.float16):
            if entry.supports_dtype(dtype, "cpu"):
                for sample in _samples(entry, dtype):
                    _call(entry, sample)
    return [rows[call] for call in sorted(rows)]


def _samples(entry: Any, dtype: Any) -> Iterator[Any]:
    try:
        yield from entry.sample_inputs("cpu", dtype, requires_grad=entry.supports_autograd)
    except Exception:  # noqa: BLE001 - some samples need what this build of torch lacks
        return


def _call(entry: Any, sample: Any) -> None:
    """Calls an operator on npu, forward and backward; what it raises is torch's conformance's."""
    import torch
    from torch.utils import _pytree as pytree

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to("npu").requires_grad_(value.requires_grad)

    given = pytree.tree_map(moved, (sample.input, sample.args, sample.kwargs))
    try:
        results = pytree.tree_leaves(entry.op(given[0], *given[1], **given[2]))
        sums = [one.float().sum() for one in results if getattr(one, "requires_grad", False)]
        if sums:
            torch.stack(sums).sum().backward()
    except Exception:  # noqa: BLE001 - samples of other devices, of wrong arguments
        return


def page(steps: Sequence[Row], calls: Sequence[Row]) -> str:
    """Returns the page as Markdown."""
    from npu_compiler.npu_rules.source_rules import source_rules

    content = source_rules().content
    text = _HEAD.format(
        repository=content["repository"], commit=content["commit"][:12], date=content["date"]
    )
    models = dict.fromkeys(row.name for row in steps)
    programs = [row for row in steps if row.verdicts]
    text += _STEPS_HEAD.format(
        models=len(models), without=len(steps) - len(programs), totals=_totals(programs)
    )
    for row in steps:
        verdicts = row.verdicts or ("–", "–")
        text += _line(row.name, row.program or "none", *verdicts, "; ".join(row.reasons))
    by_op: dict[str, list[Row]] = {}
    for row in calls:
        by_op.setdefault(row.name, []).append(row)
    if not calls:
        return text
    text += _OPS_HEAD.format(ops=len(by_op), totals=_totals(calls))
    for op, rows in sorted(by_op.items()):
        counts = (_counted(rows, index) for index in range(2))
        reasons = dict.fromkeys(reason for row in rows for reason in row.reasons)
        text += _line(op, str(len(rows)), *counts, "; ".join(reasons))
    return text


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _counted(rows: Iterable[Row], index: int) -> str:
    found = [row.verdicts[index] for row in rows]
    return ", ".join(f"{found.count(kind)} {kind}" for kind in _VERDICTS if kind in found)


def _totals(rows: Sequence[Row]) -> str:
    lines = (
        f"- NPU {generation}: {len(rows)} programs: {_counted(rows, index)}"
        for index, generation in enumerate(("3720", "4000"))
    )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Surveys all and writes the page; returns 1 where a process died."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="print these decoders' rows, and write nothing")
    given = parser.parse_args(arguments)
    steps: list[Row] = []
    died = False
    for name, rows, _ in in_processes(survey_decoder, given.only or sorted(DECODERS)):
        died |= rows is None
        for row in rows or [Row(name, "", (), ("its process died",))]:
            steps.append(replace(row, reasons=tuple(reason[:200] for reason in row.reasons)))
            print(steps[-1], flush=True)
    if given.only is None:
        PAGE.write_text(page(steps, ()))
        PAGE.write_text(page(steps, survey_ops()))
    return int(died)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Checks static programs of language models and programs of single ops; writes their page.

`python tools/npu_program_survey.py steps FILE` builds each decoder of tools/decoder_table.py as the
static pipeline does, one program for a token and one for a prompt. `ops FILE` lowers each call of
torch's database of operators that npu_ops would run as a program. FILE stores results, so that a
later run continues there; delete an entry's line to repeat it. Each program is checked with our
rules and with the NPU's compiler, unchanged and with equal forms of refused operations. Each run
writes one half of the page and keeps the other.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from decoder_survey import first_line, in_processes, make
from decoder_table import DECODERS
from npu_verdicts import (
    TARGETS,
    Row,
    compiler_name,
    judge,
    short,
    survey_into,
    targets_of,
    totals,
    verdict_of,
)

_REASONS = 6  # maximum per row
PAGE = Path(__file__).parent.parent / "docs/reference/npu-programs.md"

_HEAD = """# Language models' programs on an NPU

Each program was compiled by {compiler}, which runs on any Linux machine; no NPU was involved.
*Rules* is the quick check without it, from the source of an older compiler, corrected ([Rules and
compiler](npu-confusion.md)). *Whole*: no operation of the program breaks a rule. *Rewritten*: no
operation does after refused ones are replaced by equal forms, which the compiler received.
*Refused*: an operation breaks the named rule, or the compiler refuses the program with the quoted
message. `python tools/npu_program_survey.py` writes this page.

"""
_STEPS_HEAD = """## Static programs of language models

Small models of {models} decoders of transformers with random weights, as the static pipeline builds
them: one program for a token, and one for a chunk of a prompt. {without} of these have no static
programs, for the given reason, and run as listed in [Supported decoders](decoders.md).

{totals}

| Model | Program | Rules | {targets} | Reason |
|---|---|---|{rule}|---|
"""
_OPS_TITLE = "\n## Programs of single operators\n"
_OPS_HEAD = """
Calls from torch's database of operators, in float32 and float16 with gradients. {done} of its
{entries} entries were called, and reached {ops} of the operators that `npu-ops` may run as a
program. A signature counts once, and calls without a program do not count.

{totals}

| Operator | Calls | Rules | {targets} | Reason |
|---|---|---|{rule}|---|
"""
_VERDICTS = ("whole", "rewritten", "refused", "accepted")


def survey_decoder(name: str, targets: Sequence[str]) -> list[Row]:
    """Returns the rows of a decoder's static programs."""
    warnings.simplefilter("ignore")
    from npu_llm.models.load_options import LoadOptions
    from npu_llm.models.readiness import static_programs
    from npu_runtime.errors import NpuError

    with tempfile.TemporaryDirectory(prefix="npu-survey-") as place:
        make(name).save_pretrained(place)
        options = LoadOptions(dtype="float32", cache_dir=Path(place) / "cache")
        steps = zip(("decode", "prefill"), static_programs(place, options), strict=True)
        try:
            return [Row(name, step, judge(program.model, targets)) for step, program in steps]
        except NpuError as refusal:
            return [Row(name, "", None, short(first_line(refusal)))]


def survey_entry(name: str, targets: Sequence[str]) -> list[Row]:
    """Returns one row per signature that a database entry runs as a program.

    A process sees a signature once: npu_ops caches that it has no program.
    """
    warnings.simplefilter("ignore")
    os.environ["NPU_OPS_VARIANT"] = "program"
    import torch

    from npu_compiler import single_op
    from npu_compiler.errors import LoweringError

    rows: list[Row] = []
    failed: list[Exception] = []
    lower_op = _lower_op()

    def lowered(call: Any) -> Any:
        made = lower_op(call)
        op, _, signature = str(call).partition(" ")
        try:
            rows.append(Row(op, signature, judge(made.model, targets)))
        except Exception as failure:  # noqa: BLE001 - raised below: the call would pass over it
            failed.append(failure)
        raise LoweringError("Cannot lower: surveyed.", "cannot-lower", reason="surveyed")

    single_op.lower_op = lowered
    entry = _database()[name]
    for dtype in (torch.float32, torch.float16):
        if entry.supports_dtype(dtype, "cpu"):
            for sample in _samples(entry, dtype):
                _call(entry, sample)
    if failed:
        raise failed[0]
    return rows


@functools.cache
def _database() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {entry.formatted_name: entry for entry in op_db}


@functools.cache
def _lower_op() -> Any:
    """npu_compiler's function, replaced by the survey of an entry."""
    from npu_compiler import single_op

    return single_op.lower_op


def _samples(entry: Any, dtype: Any) -> Iterator[Any]:
    try:
        yield from entry.sample_inputs("cpu", dtype, requires_grad=entry.supports_autograd)
    except Exception:  # noqa: BLE001 - some samples need parts that this build of torch lacks
        return


def _call(entry: Any, sample: Any) -> None:
    """Calls an operator on npu, forward and backward; conformance tests handle its errors."""
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


def steps_page(steps: Sequence[Row], compiler: str) -> str:
    """Returns the half of the page about decoders' programs, with the page's head."""
    programs = [row for row in steps if row.verdicts]
    targets = targets_of(programs)
    text = _HEAD.format(compiler=compiler) + _STEPS_HEAD.format(
        models=len({row.name for row in steps}),
        without=len(steps) - len(programs),
        totals=totals(programs),
        targets=" | ".join(targets),
        rule="|".join("---" for _ in targets),
    )
    for row in steps:
        verdicts = [_counted([row], target) for target in (None, *targets)]
        cells = verdicts if row.verdicts else ["–"] * len(verdicts)
        text += _line(row.name, row.program or "none", *cells, _reasons([row]))
    return text


def ops_page(entries: Iterable[Sequence[Row]], *, total: int) -> str:
    """Returns the half of the page about single operators.

    Args:
        entries: rows of each called entry of the database.
        total: number of entries in the database.
    """
    entries = list(entries)
    calls = list({(row.name, row.program): row for rows in entries for row in rows}.values())
    by_op: dict[str, list[Row]] = {}
    for row in calls:
        by_op.setdefault(row.name, []).append(row)
    targets = targets_of(calls)
    text = _OPS_TITLE + _OPS_HEAD.format(
        ops=len(by_op),
        done=len(entries),
        entries=total,
        totals=totals(calls),
        targets=" | ".join(targets),
        rule="|".join("---" for _ in targets),
    )
    for op, rows in sorted(by_op.items()):
        counts = (_counted(rows, target) for target in (None, *targets))
        text += _line(op, str(len(rows)), *counts, _reasons(rows))
    return text


def write(*, steps: str | None = None, ops: str | None = None) -> None:
    """Writes one half of the page, and keeps the other."""
    text = PAGE.read_text() if PAGE.exists() else ""
    former_steps, title, former_ops = text.partition(_OPS_TITLE)
    PAGE.write_text((steps or former_steps) + (title + former_ops if ops is None else ops))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _reasons(rows: Sequence[Row]) -> str:
    found = [row.reason for row in rows if row.reason]
    found += [rule for row in rows if row.verdicts for rule in row.verdicts.broken]
    for target in targets_of(rows):
        for row in rows:
            if row.verdicts and row.verdicts.given.get(target):
                found.append(f'{target}: "{short(row.verdicts.given[target])}"')
    shown = list(dict.fromkeys(found))
    more = [f"{len(shown) - _REASONS} others"] if len(shown) > _REASONS else []
    return "; ".join([*shown[:_REASONS], *more])


def _counted(rows: Sequence[Row], target: str | None) -> str:
    """Returns the number of programs by verdict: a target compiler's, or the rules'."""
    found = [verdict_of(row.verdicts, target) for row in rows if row.verdicts]
    if len(rows) == 1:
        return "".join(found)
    return ", ".join(f"{found.count(kind)} {kind}" for kind in _VERDICTS if kind in found)


def main(arguments: Sequence[str]) -> int:
    """Surveys decoders or operators and writes their half of the page; 1 if a process crashed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("half", choices=("steps", "ops"), help="of the page")
    parser.add_argument("kept", type=Path, metavar="FILE", help="lines of JSON; goes on from it")
    parser.add_argument("--targets", nargs="*", default=TARGETS, help="of the compiler")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after")
    given = parser.parse_args(arguments)
    is_steps = given.half == "steps"
    names = sorted(DECODERS) if is_steps else list(_database())
    work = functools.partial(
        survey_decoder if is_steps else survey_entry, targets=tuple(given.targets)
    )
    until = time.monotonic() + given.seconds
    found = survey_into(
        given.kept,
        itertools.takewhile(lambda _: time.monotonic() < until, names),
        lambda items: in_processes(work, items),
    )
    if is_steps:
        rows = [row for name in names for row in found.get(name, ())]
        write(steps=steps_page(rows, compiler_name()))
    else:
        write(ops=ops_page(found.values(), total=len(names)))
    return int(any(json.loads(line)["died"] for line in given.kept.read_text().splitlines()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

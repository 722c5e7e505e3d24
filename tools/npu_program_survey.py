"""Checks static programs of language models and programs of single ops; writes their page.

`python tools/npu_program_survey.py` builds each decoder of tools/decoder_table.py as the static
pipeline does, one program for a token and one for a prompt. With `--ops FILE` it lowers each call
of torch's database of operators that npu_ops would hand to a program; FILE keeps what an entry of
the database gave, so that a later run goes on from there. Each program is compared with the rules
of the NPU's compiler as it is, and again with equal forms of what they refuse. Either half of the
page stays as it is while the other is written.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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
_OPS_TITLE = "\n## Programs of single operators\n"
_OPS_HEAD = """
Calls that torch's database of operators makes, in float32 and float16 with gradients; {done} of its
{entries} entries were called, and reached {ops} of the operators that `npu-ops` may hand to a
program. A signature counts once, and calls that no program computes do not count. `--ops FILE`
makes this part.

{totals}

Rules that refuse a program on NPU 4000 when equal forms stand for what has one:

{rules}

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
        left: rules of the latest generation that are broken after it.
    """

    name: str
    program: str
    verdicts: tuple[str, ...]
    reasons: tuple[str, ...]
    left: tuple[str, ...] = ()


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
    left = dict.fromkeys(refusals(GENERATIONS[-1]) if before[-1] else ())
    return Row(name, program, verdicts, tuple(reasons), tuple(left))


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


def survey_entry(index: int) -> list[Row]:
    """Returns one row for each signature that an entry of the database hands to a program.

    A process meets a signature once: npu_ops remembers that it has no program.
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
            rows.append(judge(op, signature, made.model))
        except Exception as failure:  # noqa: BLE001 - raised below: the call would pass over it
            failed.append(failure)
        raise LoweringError("Cannot lower: surveyed.", "cannot-lower", reason="surveyed")

    single_op.lower_op = lowered
    entry = _database()[index]
    for dtype in (torch.float32, torch.float16):
        if entry.supports_dtype(dtype, "cpu"):
            for sample in _samples(entry, dtype):
                _call(entry, sample)
    if failed:
        raise failed[0]
    return rows


@functools.cache
def _database() -> Sequence[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op_db)


@functools.cache
def _lower_op() -> Any:
    """npu_compiler's function, which the survey of an entry then replaces."""
    from npu_compiler import single_op

    return single_op.lower_op


def survey_ops(kept: Path, seconds: float) -> dict[str, list[Row]]:
    """Surveys the entries of the database that a file lacks, and adds them to it.

    Args:
        kept: has a line of JSON for each entry.
        seconds: after which no other entry is begun.

    Returns:
        The rows of each entry in the file, by its name.
    """
    done = read_rows(kept)
    names = [entry.formatted_name for entry in _database()]
    until = time.monotonic() + seconds
    items = (index for index, name in enumerate(names) if name not in done)
    items = itertools.takewhile(lambda _: time.monotonic() < until, items)
    for index, rows, spent in in_processes(survey_entry, items):
        name = names[index]
        done[name] = rows or []
        print(f"{name}: {'its process died' if rows is None else len(rows)} ({spent:.1f} s)")
        with kept.open("a") as file:
            line = {
                "entry": name,
                "died": rows is None,
                "rows": [asdict(row) for row in done[name]],
            }
            file.write(json.dumps(line) + "\n")
    return done


def read_rows(kept: Path) -> dict[str, list[Row]]:
    """Returns what earlier runs kept: the rows of each entry of the database, by its name."""
    lines = kept.read_text().splitlines() if kept.exists() else []
    return {
        (entry := json.loads(line))["entry"]: [
            Row(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
            for row in entry["rows"]
        ]
        for line in lines
    }


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


def steps_page(steps: Sequence[Row]) -> str:
    """Returns the half of the page on decoders' programs, with the page's head."""
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
    return text


def ops_page(entries: Iterable[Sequence[Row]], *, total: int) -> str:
    """Returns the half of the page on single operators.

    Args:
        entries: the rows of each entry of the database that was called.
        total: how many entries it has.
    """
    entries = list(entries)
    calls = list({(row.name, row.program): row for rows in entries for row in rows}.values())
    by_op: dict[str, list[Row]] = {}
    for row in calls:
        by_op.setdefault(row.name, []).append(row)
    rules = Counter(rule for row in calls for rule in row.left)
    text = _OPS_TITLE + _OPS_HEAD.format(
        ops=len(by_op),
        done=len(entries),
        entries=total,
        totals=_totals(calls),
        rules="\n".join(f"- {rule}: {count} of the programs" for rule, count in rules.most_common())
        or "- none",
    )
    for op, rows in sorted(by_op.items()):
        counts = (_counted(rows, index) for index in range(2))
        reasons = dict.fromkeys(reason for row in rows for reason in row.reasons)
        text += _line(op, str(len(rows)), *counts, "; ".join(reasons))
    return text


def write(*, steps: str | None = None, ops: str | None = None) -> None:
    """Writes one half of the page, and keeps the other."""
    text = PAGE.read_text() if PAGE.exists() else ""
    former_steps, title, former_ops = text.partition(_OPS_TITLE)
    PAGE.write_text((steps or former_steps) + (title + former_ops if ops is None else ops))


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


def _short(reason: str) -> str:
    return textwrap.shorten(reason, 200, placeholder=" …")  # a cell of a table


def main(arguments: Sequence[str]) -> int:
    """Surveys decoders or operators and writes their half of the page; 1 where a process died."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="print these decoders' rows, and write nothing")
    parser.add_argument(
        "--ops", type=Path, metavar="FILE", help="single operators; goes on from it"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with --ops: end then")
    given = parser.parse_args(arguments)
    if given.ops is not None:
        entries = survey_ops(given.ops, given.seconds)
        write(ops=ops_page(entries.values(), total=len(_database())))
        return int(any(json.loads(line)["died"] for line in given.ops.read_text().splitlines()))
    steps: list[Row] = []
    died = False
    for name, rows, _ in in_processes(survey_decoder, given.only or sorted(DECODERS)):
        died |= rows is None
        for row in rows or [Row(name, "", (), ("its process died",))]:
            steps.append(replace(row, reasons=tuple(map(_short, row.reasons))))
            print(steps[-1], flush=True)
    if given.only is None:
        write(steps=steps_page(steps))
    return int(died)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

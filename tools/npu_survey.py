"""Checks the programs of the model suite with our rules and the NPU's compiler; writes the page.

`python tools/npu_survey.py FILE` compiles each small architecture as `nox -s models` does, compares
every operation of every program with our rules, and compiles the program with the NPU's compiler.
If either refuses one, it compiles again with `target="NPU"`. FILE stores results, so that a later
run continues there; delete an architecture's line to repeat it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import openvino as ov
import torch

from decoder_survey import in_processes
from npu_compiler.errors import SuiteError
from npu_compiler.graph_compiler.records import GraphRecord, collecting
from npu_compiler.openvino_core import openvino_core
from npu_compiler.suite.families.architecture import Architecture, make
from npu_compiler.suite.table import select
from npu_verdicts import (
    TARGETS,
    Row,
    Verdicts,
    ask,
    compiler_name,
    refusals,
    short,
    survey_into,
    targets_of,
)

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/npu-coverage.md"

_HEAD = """# Operations of the NPU compiler

This page covers programs of small models of {count} architectures. Each was compiled by {compiler},
which runs on any Linux machine; no NPU was involved. The columns of generations count the accepted
programs among the programs for an NPU. Memory and speed are not compared here.

*Rules* is the quick check without the compiler, from the source of an older one, corrected ([Rules
and compiler](npu-confusion.md)). *Whole*: one program without an operation that breaks a rule.
*Partitioned*: several programs, or calls on the host, without such an operation. *Refused*: an
operation breaks the named rule.

If a model is refused, the next verdict is about `CompilerConfig(target="NPU")`: equal forms of the
refused operations (*rewritten*), and calls on the host for the rest. Each model is called once
before it is compiled, because in the first call transformers installs hooks or chooses a form of
attention, which would break the graph.

The suite has {total} architectures; unlisted ones have not been compared.
[Language models' programs on an NPU](npu-programs.md) has the programs of decoders with a cache.

`npu-compiler check` judges your model in the same way. `python tools/npu_survey.py` writes this
page; `python tools/npu_rules.py CHECKOUT` reads the rules of a newer compiler.

{totals}

| Architecture | Family | Programs | Rules | `target="NPU"` | {targets} | Reason |
|---|---|---|---|---|{rule}|---|
"""
# Row names of an architecture's programs, before a number: without a target, and with target="NPU".
AS_IS, GIVEN = "program", "program for an NPU"


def survey(name: str, targets: Sequence[str]) -> list[Row]:
    """Compiles one architecture and judges its programs.

    Returns:
        One row with its verdicts and host ops, then one for each program.
    """
    (architecture,) = select([name])
    try:
        records, models = _compiled(architecture, target="openvino")
    except SuiteError as failure:
        return [Row(name, "", None, f"left out: {failure}")]
    rows = _rows(name, AS_IS, models, targets)
    words = [_verdict(records, rows)]
    if any(row.verdicts.broken or any(row.verdicts.as_is.values()) for row in rows):
        given, models = _compiled(architecture, target="NPU")
        rows += _rows(name, GIVEN, models, targets)
        words.append(_verdict(given, rows[-len(models) :]))
        if any(program.rewritten for record in given for program in record.programs):
            words[-1] += ", rewritten"
    reasons = Counter(f"on the host: {node.op}" for record in records for node in record.eager)
    reasons.update(_graph_breaks() if len(records) > 1 else ())
    return [Row(name, "; ".join(words), None, "; ".join(reasons)), *rows]


def _rows(name: str, kind: str, models: Sequence[ov.Model], targets: Sequence[str]) -> list[Row]:
    rows = []
    for index, model in enumerate(models):
        broken, reasons = refusals(model), ask(model, targets)
        rows.append(Row(name, f"{kind} {index}", Verdicts(broken, broken, False, reasons, reasons)))
    return rows


def _compiled(
    architecture: Architecture, *, target: str
) -> tuple[Sequence[GraphRecord], Sequence[ov.Model]]:
    """Returns the compiled model and its programs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with (
        tempfile.TemporaryDirectory(prefix="npu-survey-") as place,
        # A program cached by an earlier run would not be written here.
        mock.patch.dict(os.environ, NPU_COMPILE_CACHE_DIR=place, NPU_COMPILE_DEBUG=place),
    ):
        with torch.no_grad(), warnings.catch_warnings(), collecting() as records:
            warnings.simplefilter("ignore")
            model, inputs = make(architecture, seed=0)
            model(**inputs)  # transformers' first-call code would break the graph
            options = {"verify": "off", "target": target}
            torch.compile(model, backend="npu", options=options)(**inputs)
        files = sorted(Path(place).glob("*/program-*.xml"))
        models = [openvino_core().read_model(file) for file in files]
    return records, models


def _graph_breaks() -> set[str]:
    """Returns torch's reasons for graph breaks."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    return {f"graph cut: {reason.splitlines()[0]}" for reason in breaks}


def _verdict(records: Sequence[GraphRecord], rows: Sequence[Row]) -> str:
    if any(row.verdicts.broken for row in rows if row.verdicts):
        return "refused"
    is_one = len(records) == 1 and len(records[0].programs) == 1 and not records[0].eager
    return "whole" if is_one else "partitioned"


def page(found: Mapping[str, Sequence[Row]], compiler: str) -> str:
    """Returns the page as Markdown.

    Args:
        found: rows of each architecture.
        compiler: name and version of the compiler.
    """
    targets = targets_of(row for rows in found.values() for row in rows)
    text, words, counts = "", [], {target: Counter[str]() for target in targets}
    for architecture in select():
        if not (found.get(architecture.name) or [Row("", "", None)])[0].program:
            continue
        whole, *rows = found[architecture.name]
        as_is, _, given = whole.program.partition("; ")
        words.append((as_is, given or as_is))
        last = [row for row in rows if row.program.startswith(GIVEN)] or rows
        cells = [architecture.name, architecture.family, str(len(last)), as_is, given]
        reasons = [rule for row in rows if row.verdicts for rule in row.verdicts.broken]
        for target in targets:
            asked = [row.verdicts.given[target] for row in last if target in row.verdicts.given]
            refused = [reason for reason in asked if reason]
            counts[target].update(accepted=len(asked) - len(refused), refused=len(refused))
            cells.append(f"{len(asked) - len(refused)} of {len(asked)}" if asked else "not asked")
            reasons += [f'{target}: "{short(reason)}"' for reason in refused]
        cells.append("; ".join(dict.fromkeys([*reasons, *filter(None, [whole.reason])])))
        text += f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
    totals = [
        f"- {title}: {', '.join(f'{n} {kind}' for kind, n in Counter(kinds).most_common())}"
        for title, kinds in zip(
            ("Rules", 'Rules, with `target="NPU"`'), zip(*words, strict=True), strict=False
        )
    ]
    for target, counted in counts.items():
        totals.append(
            f"- NPU {target}: {counted['accepted']} of {counted.total()} programs accepted"
        )
    head = _HEAD.format(
        count=len(words),
        compiler=compiler,
        total=len(select()),
        totals="\n".join(totals),
        targets=" | ".join(targets),
        rule="|".join("---" for _ in targets),
    )
    return head + text


def main() -> None:
    """Surveys the missing architectures and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kept", type=Path, metavar="FILE", help="lines of JSON; goes on from it")
    parser.add_argument("--targets", nargs="*", default=TARGETS, help="of the compiler")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after")
    given = parser.parse_args()
    work = functools.partial(survey, targets=tuple(given.targets))
    until = time.monotonic() + given.seconds

    def worked(names: Iterator[str]) -> Iterator[tuple[str, list[Row] | None, float]]:
        return in_processes(work, itertools.takewhile(lambda _: time.monotonic() < until, names))

    found = survey_into(given.kept, (one.name for one in select()), worked)
    PAGE.write_text(page(found, compiler_name()))


if __name__ == "__main__":
    main()

"""Checks the programs of the model suite against the rules of the NPU's compiler; writes the page.

`python tools/npu_survey.py [NAME ...]` compiles each small architecture as `nox -s models` does and
compares every operation of every program with the rules of both generations. Where one is refused,
it compiles again with `target="NPU"`. The page is written after each architecture; rows of those
that are not run stay. `--missing` runs those that the page lacks.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino as ov
import torch

from npu_compiler.compilation.records import GraphRecord, collecting
from npu_compiler.errors import SuiteError
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.source_rules import GENERATIONS, source_rules
from npu_compiler.npu_rules.whole_programs import check_whole_program
from npu_compiler.openvino_core import openvino_core
from npu_compiler.suite.families.architecture import Architecture, make
from npu_compiler.suite.table import select

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/npu-coverage.md"

_HEAD = """# What an NPU's compiler takes

The programs of small models of {count} architectures, operation by operation, against rules that
were read from the source of the NPU's compiler: `{repository}` at commit
`{commit}` ({date}). No NPU was involved. *Whole*: one program, and no operation of it
breaks a rule. *Partitioned*: no program breaks a rule, and there are several, or calls on the host.
*Refused*: an operation breaks the rule that is named. Where one is refused, the last verdict is on
what `CompilerConfig(target="NPU")` makes of it, for NPU 4000: equal forms of what is refused
(*rewritten*), and calls on the host for the rest. A newer driver may take more. Memory and speed
are not compared here. Each model is called once before it is compiled: in its first call
transformers installs hooks, or chooses a form of attention, where torch would cut the graph. Sizes
that vary inside a program are refused. All rows were made on 2026-11-26.

The suite has {total} architectures; those that are not listed have not been compared.
[Language models' steps on an NPU](npu-programs.md) has the programs of decoders with a cache.

`npu-compiler check` says the same of your model. `python tools/npu_survey.py` makes this page;
`python tools/npu_rules.py CHECKOUT` reads the rules of a newer compiler.

{totals}

| Architecture | Family | Programs | 3720 | 4000 | `target="NPU"` | What is in the way |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """What became of one architecture.

    Attributes:
        architecture: of the suite.
        programs: how many it has.
        verdicts: one for each generation.
        after: the verdict with target="NPU"; "" where nothing was refused without it.
        reasons: rules that were broken, and calls on the host.
    """

    architecture: Architecture
    programs: int
    verdicts: tuple[str, ...]
    after: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        cells = [self.architecture.name, self.architecture.family, str(self.programs)]
        return f"| {' | '.join([*cells, *self.verdicts, self.after, '; '.join(self.reasons)])} |"


def survey(architecture: Architecture) -> Row:
    """Compiles one architecture and checks its programs."""
    records, models = _compiled(architecture, target="openvino")
    found = {generation: _refusals(models, generation) for generation in GENERATIONS}
    after = ""
    if any(found.values()):
        records_after, models_after = _compiled(architecture, target="NPU")
        after = _verdict(records_after, _refusals(models_after, GENERATIONS[-1]))
        if any(program.rewritten for record in records_after for program in record.programs):
            after += ", rewritten"
    reasons = Counter(
        f"{finding.operation}, {finding.rule}".removeprefix(", ")
        for row in found.values()
        for finding in row
    )
    reasons.update(f"on the host: {node.op}" for record in records for node in record.eager)
    reasons.update(_graph_breaks() if len(records) > 1 else ())
    verdicts = tuple(_verdict(records, found[generation]) for generation in GENERATIONS)
    return Row(architecture, len(models), verdicts, after, tuple(reasons))


def _compiled(
    architecture: Architecture, *, target: str
) -> tuple[Sequence[GraphRecord], Sequence[ov.Model]]:
    """What was compiled, and the programs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with tempfile.TemporaryDirectory(prefix="npu-survey-") as place:
        # A program that an earlier run kept would not be written here.
        os.environ["NPU_COMPILE_CACHE_DIR"] = os.environ["NPU_COMPILE_DEBUG"] = place
        with torch.no_grad(), warnings.catch_warnings(), collecting() as records:
            warnings.simplefilter("ignore")
            model, inputs = make(architecture, seed=0)
            model(**inputs)  # what transformers does in a first call alone would cut the graph
            options = {"verify": "off", "target": target}
            torch.compile(model, backend="npu", options=options)(**inputs)
        files = sorted(Path(place).glob("*/program-*.xml"))
        models = [openvino_core().read_model(file) for file in files]
    return records, models


def _graph_breaks() -> set[str]:
    """What cut a model into several graphs, in torch's words."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    return {f"graph cut: {reason.splitlines()[0]}" for reason in breaks}


def _refusals(models: Sequence[ov.Model], generation: str) -> list[Finding]:
    return [
        finding
        for model in models
        for finding in (
            *check_whole_program(model),
            *check_operations(model, generation=generation),
        )
        if finding.verdict == "refused"
    ]


def _verdict(records: Sequence[GraphRecord], refused: Sequence[Finding]) -> str:
    if refused:
        return "refused"
    is_one = len(records) == 1 and len(records[0].programs) == 1 and not records[0].eager
    return "whole" if is_one else "partitioned"


def page(rows: Sequence[str]) -> str:
    """The page as Markdown, from the lines of its table."""
    content = source_rules().content
    totals = []
    for index, generation in enumerate(GENERATIONS):
        counts = Counter(row.split(" | ")[3 + index] for row in rows)
        parts = ", ".join(f"{counts[kind]} {kind}" for kind in ("whole", "partitioned", "refused"))
        totals.append(f"- NPU {generation}: {parts}")
    verdicts = Counter((cells := row.split(" | "))[5] or cells[4] for row in rows)
    parts = ", ".join(f"{count} {kind}" for kind, count in verdicts.most_common())
    totals.append(f'- NPU 4000 with `target="NPU"`: {parts}')
    head = _HEAD.format(
        count=len(rows),
        total=len(select()),
        repository=content["repository"],
        commit=content["commit"][:12],
        date=content["date"],
        totals="\n".join(totals),
    )
    return head + "".join(f"{row}\n" for row in rows)


def main() -> None:
    """Surveys the architectures that are named, or all, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; all when none is named")
    parser.add_argument("--missing", action="store_true", help="those that the page lacks")
    given = parser.parse_args()
    rows = _kept()
    for architecture in select(given.names):
        if given.missing and architecture.name in rows:
            continue
        try:
            row = survey(architecture)
        except SuiteError as failure:
            print(f"{architecture.name}: left out: {failure}")
            continue
        rows[architecture.name] = str(row)
        print(row, flush=True)
        PAGE.write_text(page(list(rows.values())))


def _kept() -> dict[str, str]:
    """The rows of the page as it is, by architecture."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| Arch")]
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


if __name__ == "__main__":
    main()

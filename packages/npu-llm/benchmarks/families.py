"""Speed of Whisper, T5 and SmolVLM compared with optimum-intel, openvino-genai and transformers.

    python packages/npu-llm/benchmarks/families.py --work DIR --peers PYTHON

DIR keeps each engine's format of the weights, so that later runs convert nothing. PYTHON is the
interpreter of the other engines; without it only transformers is compared with npu-llm:

    pip install torch==2.13.* openvino-genai==2026.4.1.0 optimum-intel==2.2.0

The models have published sizes and random weights. Each measurement runs in a separate process, on
as many processors as there are threads, in float32 everywhere: OpenVINO defaults to bfloat16 on
processors that support it, so INFERENCE_PRECISION_HINT is f32 for engines based on it. Rounds
alternate between all engines, and the best one counts. Answers are compared with those of
transformers, and later loads of npu-llm that compile anything are reported. Speech: 30 s of audio
and an answer of some tokens, as a multiple of real time. Text: tokens per second of an answer to
128 tokens, including the encoder's time. Picture: one image of 512 pixels, not split into tiles,
and a question; first tokens per second. openvino-genai does not support T5, and the exporter of
optimum-intel 2.2, which also creates openvino-genai's format, does not support SmolVLM with
transformers 5: there only transformers is compared. `--small` runs everything with small models, as
a test.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _families_files import FAMILIES, form_path
from _families_worker import ENGINES, Job
from llm import listed, run_script, shared_properties

OPENVINO = ("openvino-genai", "optimum-intel")
_REFERENCE = "transformers"


@dataclass(frozen=True)
class Row:
    """A measurement: one engine with one model."""

    family: str
    engine: str


def all_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Returns the requested rows that can be measured, engines innermost."""
    for family in options.families:
        for engine in options.engines:
            kind = FAMILIES[family].kind
            is_taken = {"openvino-genai": kind == "speech", "optimum-intel": kind != "picture"}
            if is_taken.get(engine, True) and (engine not in OPENVINO or options.peers):
                yield Row(family, engine)


def prepare(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Creates missing formats of the weights."""
    wanted = {(row.family, "checkpoint"): sys.executable for row in rows}
    wanted |= {(row.family, "openvino"): options.peers for row in rows if row.engine in OPENVINO}
    for (family, form), python in wanted.items():
        if not form_path(options.work, family, form, small=options.small).exists():
            print(f"making {family} {form}", flush=True)
            script = [str(options.work), family, form, *(["--small"] if options.small else [])]
            run_script(python, "_families_files.py", script, options.threads)


def measure(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a row in a separate process."""
    is_peer = row.engine in OPENVINO
    form = "openvino" if is_peer else "checkpoint"
    job = Job(
        engine=row.engine,
        kind=FAMILIES[row.family].kind,
        place=str(form_path(options.work, row.family, form, small=options.small)),
        properties=shared_properties("float32"),
        new_tokens=options.new_tokens,
        repeats=options.repeats,
        threads=options.threads,
        cache=str(options.work / "npu-llm-cache"),
    )
    python = options.peers if is_peer else sys.executable
    script = [json.dumps(asdict(job))]
    output, _ = run_script(python, "_families_worker.py", script, options.threads)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def print_table(results: dict[Row, list[dict[str, Any]]]) -> None:
    """Prints the best round of each row, and the ratio of npu-llm to the best other engine."""
    for family in dict.fromkeys(row.family for row in results):
        print(f"\n{family}, float32, {FAMILIES[family].unit}")
        members = {row.engine: found for row, found in results.items() if row.family == family}
        best = {engine: max(one["rate"] for one in found) for engine, found in members.items()}
        right = members.get(_REFERENCE, [{"text": None}])[0]["text"]
        for engine, rate in best.items():
            rounds = members[engine]
            load = min(one["load_s"] for one in rounds)
            cpu = min(one["cpu_s"] for one in rounds)
            same = "same" if all(one["text"] == right for one in rounds) else "OTHER"
            told = "" if right is None else f"   {same} answer as {_REFERENCE}"
            starts = [one["is_compiled"] for one in rounds[1:]]
            if engine.startswith("npu-llm"):
                told += f"   {sum(starts)} of {len(starts)} later starts compiled something"
            print(f"  {engine:16}{rate:10.2f}   load {load:5.1f} s   {cpu:6.2f} CPU s{told}")
        others = [rate for engine, rate in best.items() if not engine.startswith("npu-llm")]
        if "npu-llm" in best and others:
            print(f"  npu-llm to the best of the others: {best['npu-llm'] / max(others):.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps the weights")
    parser.add_argument("--peers", metavar="PYTHON", help="the other engines' interpreter")
    parser.add_argument("--families", type=listed, default=list(FAMILIES))
    parser.add_argument("--engines", type=listed, default=list(ENGINES))
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="answers per process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="small models, to try it out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = list(all_rows(options))
    prepare(rows, options)
    results: dict[Row, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for row in rows:
            print(f"round {number + 1}: {row.family} {row.engine}", flush=True)
            try:
                results.setdefault(row, []).append(measure(row, options))
            except ChildProcessError as failure:
                print(failure, file=sys.stderr, flush=True)
    measured = {row: found for row, found in results.items() if found}
    print(f"{options.threads} threads; load {os.getloadavg()}")
    print_table(measured)
    if options.json:
        lines = [asdict(row) | {"rounds": found} for row, found in measured.items()]
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()

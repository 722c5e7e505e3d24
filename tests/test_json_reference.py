"""The page of JSON output against the sources: the keys that each command writes."""

import ast
import re

import pytest

from npu_command.command_parser import parser_of
from npu_command.subcommands import read_command

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")

LLM, COMPILER = "npu-llm/src/npu_llm", "npu-compiler/src/npu_compiler"
KEPT = "npu-runtime/src/npu_command/caches.py"
RUNTIME, OPS = "npu-runtime/src/npu_runtime", "npu-ops/src/npu_ops"
PROFILER = "npu-profiler/src/npu_profiler"
BLOBS = [
    f"{COMPILER}/programs/blobs.py:AheadBlob",
    f"{COMPILER}/programs/blobs.py:fingerprint",
    f"{COMPILER}/target_compiler/report.py:Estimate",
    f"{COMPILER}/exported/ahead.py:_record",
]
FOLDER = [f"{LLM}/cli/writing/export.py:about", *BLOBS]
TARGET = f"{COMPILER}/target_compiler/targets.py:Target"
INTEL = f"{COMPILER}/target_compiler/intel.py"
COMPILED = [
    TARGET,
    *(f"{COMPILER}/target_compiler/report.py:{name}" for name in ("TargetReport", "Estimate")),
]
READINESS = [
    f"{COMPILER}/readiness.py:Readiness",
    f"{COMPILER}/npu_rules/operations.py:Finding",
    *COMPILED,
]
MEASURED = f"{OPS}/variants/measurements.py:Measurement"
SWEEP = [
    f"{PROFILER}/commands/sweep.py:document",
    f"{PROFILER}/sweeps.py:records",
    f"{PROFILER}/sweeps.py:Measurement",
]
CACHES = ("npu-llm cache", "npu-compiler cache")

# The source of a command's keys: the fields of a class, or a function, a variable or a call with
# dicts.
SOURCES = {
    "npu-llm generate": [f"{LLM}/cli/generate.py:give_answer"],
    "npu-llm describe": [f"{LLM}/cli/tasks/describe.py:document"],
    "npu-llm translate": [f"{LLM}/cli/tasks/translate.py:append"],
    "npu-llm transcribe": [f"{LLM}/speech/transcript.py:write_transcript"],
    "npu-llm embed": [f"{LLM}/cli/tasks/embed.py:records"],
    "npu-llm rerank": [f"{LLM}/tasks/models.py:Ranked"],
    "npu-llm export": FOLDER,
    "npu-llm quantize": FOLDER,
    "npu-llm merge": FOLDER,
    "npu-llm bench": [
        f"{LLM}/cli/bench.py:about",
        f"{LLM}/cli/bench.py:give_answer",
        f"{LLM}/bench.py:BenchRecord",
    ],
    "npu-llm bench --server": [
        f"{LLM}/cli/serving/remote_bench.py:as_json",
        *(f"{LLM}/serving/client.py:{name}" for name in ("LoadReport", "Work", "Percentiles")),
    ],
    "npu-llm info": [
        f"{LLM}/cli/showing/model_description.py:describe",
        f"{LLM}/cli/showing/model_description.py:_known_pipeline",
        f"{LLM}/cli/showing/model_description.py:_estimated",
        f"{LLM}/checkpoint/facts.py:ModelFacts",
    ],
    "npu-llm list": [f"{LLM}/cli/showing/list.py:_as_json"],
    "npu-llm ps": [f"{LLM}/cli/showing/ps.py:models"],
    "npu-llm check": READINESS,
    "npu-llm check --estimate": [f"{LLM}/models/readiness.py:as_dict"],
    "npu-llm eval": [
        f"{LLM}/cli/eval.py:_by_text.rows",
        f"{LLM}/evaluation/perplexity.py:EvaluationResult",
    ],
    "npu-llm eval --data": [f"{LLM}/cli/eval.py:_by_data.rows"],
    **{cache: [f"{KEPT}:_as_json"] for cache in CACHES},
    **{f"{cache} {action}": [f"{KEPT}:_remove"] for cache in CACHES for action in ("rm", "prune")},
    **{f"{cache} dir": [f"{KEPT}:act"] for cache in CACHES},
    "npu-runtime info": [f"{RUNTIME}/commands/info.py:_report", f"{RUNTIME}/info.py:DeviceInfo"],
    "npu-runtime doctor": [
        f"{RUNTIME}/doctor/report.py:as_json",
        f"{RUNTIME}/doctor/machine.py:Serving",
        f"{RUNTIME}/doctor/report.py:Check",
    ],
    "npu-runtime collect-env": [f"{RUNTIME}/collect_env.py:collect"],
    "npu-compiler check": READINESS,
    "npu-compiler check --half": [
        f"{COMPILER}/half_precision.py:{name}" for name in ("HalfPrecision", "HalfCall")
    ],
    "npu-compiler check --estimate": [
        f"{COMPILER}/roofline/time_estimate.py:TimeEstimate",
        *COMPILED,
        f"{COMPILER}/roofline/bound.py:TimeBound",
        f"{COMPILER}/roofline/bound.py:Generation",
        f"{COMPILER}/roofline/bound.py:Figure",
        f"{COMPILER}/roofline/counts.py:Products",
        f"{COMPILER}/roofline/counts.py:Traffic",
    ],
    "npu-compiler explain": [
        f"{COMPILER}/explanations/explain.py:Explanation",
        *(
            f"{COMPILER}/graph_compiler/records.py:{name}"
            for name in ("GraphRecord", "ProgramRecord", "EagerNode")
        ),
        f"{COMPILER}/passes/infra/pass_base.py:PassResult",
        f"{COMPILER}/quantize/compress.py:CompressionReport",
        f"{COMPILER}/quantize/compress.py:CompressedWeight",
        f"{COMPILER}/verification/result.py:Verdict",
    ],
    "npu-compiler export": [f"{COMPILER}/commands/export.py:document", *BLOBS],
    "npu-compiler target list": [
        f"{COMPILER}/commands/target.py:_list",
        *(f"{INTEL}:{name}" for name in ("state", "_described", "_missing")),
        TARGET,
    ],
    "npu-compiler target install": [f"{INTEL}:install"],
    "npu-compiler target remove": [f"{COMPILER}/commands/target.py:main"],
    "npu-compiler tune": [
        f"{COMPILER}/tuning/store.py:TuningReport",
        f"{COMPILER}/tuning/store.py:TuningRecord",
    ],
    **{
        f"npu-profiler {name}": [f"npu-profiler/src/npu_profiler/commands/{name}.py:_document"]
        for name in ("summary", "roofline")
    },
    "npu-profiler estimate": [f"{PROFILER}/commands/summary.py:_document"],
    "npu-profiler compare": [
        f"{PROFILER}/commands/compare.py:_document",
        f"{PROFILER}/comparison.py:Difference",
    ],
    "npu-profiler memory": [
        f"{PROFILER}/commands/memory.py:_record",
        *(f"{PROFILER}/queries/memory.py:{name}" for name in ("Peak", "Place", "Holder", "Rise")),
    ],
    "npu-profiler matmul": SWEEP,
    "npu-profiler mlp": SWEEP,
    "npu-profiler llm": [f"{PROFILER}/commands/llm.py:document"],
    "npu-ops explain": [f"{OPS}/variants/explain.py:Explanation", MEASURED],
    "npu-ops tune": [
        f"{OPS}/variants/commands/tune.py:document",
        MEASURED,
        f"{OPS}/variants/autotune.py:Decision",
    ],
    "npu-ops tune --list": [MEASURED],
}


@pytest.fixture(scope="module")
def rows(root):
    """The keys of each command on the page."""
    page = (root / "docs" / "reference" / "json.md").read_text()
    found = {}
    for line in re.findall(r"^\| `.*$", page, re.MULTILINE):
        commands, _, keys = line.strip("| ").split(" | ")
        for command in re.findall(r"`([^`]+)`", commands):
            assert command not in found
            found[command] = set(re.findall(r"`([^`]+)`", keys))
    return found


def keys_at(root, place):
    file, _, names = place.partition(":")
    nodes = [ast.parse((root / "packages" / file).read_text())]
    for name in names.split("."):
        nodes = [node for outer in nodes for node in ast.walk(outer) if is_named(node, name)]
    assert nodes, place
    fields = {
        inner.target.id
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.AnnAssign)
    }
    dicts = [d for node in nodes for d in ast.walk(node) if isinstance(d, ast.Dict)]
    keys = [key.value for one in dicts for key in one.keys if isinstance(key, ast.Constant)]
    return fields | {key for key in keys if isinstance(key, str)}


def is_named(node, name):
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            return node.name == name
        case (
            ast.Assign(targets=[ast.Name() as target]) | ast.AnnAssign(target=ast.Name() as target)
        ):
            return target.id == name
        case ast.Call(func=ast.Name(id=called)) | ast.Call(func=ast.Attribute(attr=called)):
            return called == name
    return False


@pytest.mark.parametrize("command", SOURCES)
def test_the_page_has_the_keys_that_a_command_writes(root, rows, command):
    written = set().union(*(keys_at(root, place) for place in SOURCES[command]))
    assert rows[command] == written


def test_the_page_has_the_commands_that_take_json(rows):
    assert rows.keys() == SOURCES.keys()
    with_json = {
        f"{package} {name}"
        for package in PACKAGES
        for name, subcommand in read_command(package.replace("-", "_")).subcommands.items()
        if "--json" in parser_of(subcommand.module)._option_string_actions
    }
    assert {" ".join(command.split()[:2]) for command in rows} == with_json

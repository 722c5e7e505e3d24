"""The page of JSON answers against the sources: the keys that each command writes."""

import ast
import re

import pytest

from npu_command.subcommands import read_command

LLM, COMPILER = "npu-llm/src/npu_llm", "npu-compiler/src/npu_compiler"
KEPT = "npu-runtime/src/npu_command/caches/kept_entries.py"
FOLDER = [f"{LLM}/cli/writing/export.py:about"]
CACHES = ("npu-llm models", "npu-compiler cache")

# Where a command's keys are written: a class whose fields they are, or a function, a variable or a
# call with dicts.
SOURCES = {
    "npu-llm generate": [f"{LLM}/cli/generate.py:give_answer"],
    "npu-llm describe": [f"{LLM}/cli/tasks/describe.py:document"],
    "npu-llm translate": [f"{LLM}/cli/tasks/translate.py:append"],
    "npu-llm transcribe": [f"{LLM}/speech/transcript.py:write_transcript"],
    "npu-llm embed": [f"{LLM}/cli/tasks/embed.py:records"],
    "npu-llm rerank": [f"{LLM}/tasks/reranking.py:Ranked"],
    "npu-llm export": FOLDER,
    "npu-llm quantize": FOLDER,
    "npu-llm merge": FOLDER,
    "npu-llm bench": [
        f"{LLM}/cli/bench.py:about",
        f"{LLM}/cli/bench.py:give_answer",
        f"{LLM}/bench/measuring.py:BenchRecord",
    ],
    "npu-llm eval": [
        f"{LLM}/cli/eval.py:_by_text.rows",
        f"{LLM}/evaluation/perplexity.py:EvaluationResult",
    ],
    "npu-llm eval --data": [f"{LLM}/cli/eval.py:_by_data.rows"],
    **{cache: [f"{KEPT}:_as_json"] for cache in CACHES},
    **{f"{cache} {action}": [f"{KEPT}:_remove"] for cache in CACHES for action in ("rm", "prune")},
    **{f"{cache} dir": [f"{KEPT}:act"] for cache in CACHES},
    "npu-runtime doctor": ["npu-runtime/src/npu_runtime/doctor/report.py:as_json"],
    "npu-compiler tune": [
        f"{COMPILER}/tuning/report.py:TuningReport",
        f"{COMPILER}/tuning/store.py:TuningRecord",
    ],
    **{
        f"npu-profiler {name}": [f"npu-profiler/src/npu_profiler/commands/{name}.py:_document"]
        for name in ("summary", "roofline")
    },
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
    return fields | {key.value for d in dicts for key in d.keys if isinstance(key, ast.Constant)}


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


def test_the_page_has_commands_that_there_are(rows):
    assert rows.keys() == SOURCES.keys()
    for command in rows:
        package, subcommand = command.split()[:2]
        assert subcommand in read_command(package.replace("-", "_")).subcommands

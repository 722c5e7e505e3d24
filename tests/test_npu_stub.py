"""The stub of the NPU's plugin: cases that its rules accept, and breaches that it detects."""

import fnmatch
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from npu_compiler.openvino_core import openvino_core
from npu_stub import expected_failures
from npu_stub.build import build_stub
from npu_stub.verdicts import Verdicts, serving

# One process: tensors of sizes and offsets that are no whole pages, large ones, pinned memory.
MEMORY = """
import ctypes, json, os, sys, threading
import npu_compiler, torch
record = ctypes.CDLL(os.environ["NPU_OPENVINO_LIBRARY"]).npu_stub_record
record.restype = ctypes.c_char_p
def told(what):
    return json.loads(record()).get(what, 0)

graph = npu_compiler.GraphBuilder(verify="off")
graph.compile(graph.parameter((37, 11)) + 1)
large = npu_compiler.GraphBuilder(verify="off")
large.compile(large.parameter((1, 1 << 20)) + 1)
rows = torch.rand(50, 37, 11, device="npu")
wrong = []
def work(index):
    for row in rows[index::4]:
        if not torch.equal(graph.run(row).cpu(), row.cpu() + 1):
            wrong.append(index)
threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
big = torch.rand(1, 1 << 20, device="npu")
assert torch.equal(large.run(big).cpu(), big.cpu() + 1)
assert torch.equal(graph.run(torch.npu.as_npu(rows[0].cpu().pin_memory())).cpu(), rows[0].cpu() + 1)
print(wrong, told("runs"), told("copies"))
del rows, big
torch.npu.empty_cache()
alive = told("imports_alive")
again = torch.rand(1, 1 << 20, device="npu")
assert torch.equal(large.run(again).cpu(), again.cpu() + 1)
print(alive < told("imports"), told("copies"))
graph.run(torch.rand(37, 11))
print(told("copies"))
"""

# A blob that the stub takes, and one that it does not.
IMPORTED = """
import sys
import npu_runtime, torch
from npu_runtime.info import npu_architecture
def load(path):
    return npu_runtime.load_program(path, name="m", options={"INFERENCE_PRECISION_HINT": "f16"})

program = load(sys.argv[1])
(result,) = program.run([torch.tensor([[-1.0, 2.0]])])
print(npu_architecture(), program.loaded_from_cache, result.tolist())
try:
    load(sys.argv[2])
except npu_runtime.ProgramError as refusal:
    print(refusal)
"""

# A model with a known defect of the CPU plugin, on the device NPU.
CPU_DEFECT = """
import sys
sys.path.insert(0, sys.argv[1])
import cpu_defects, numpy, npu_compiler, openvino
from npu_compiler.programs import load
from openvino import opset13 as ops
x, y = (ops.parameter([4], numpy.float32) for _ in range(2))
model = openvino.Model([ops.greater(x, y)], [x, y])
def kinds():
    return {node.get_type_name() for node in model.get_ops()} & {"Greater", "Less"}
print(load.needed_options(model, None, {}), kinds())
cpu_defects.pytest_configure(None)
print(load.needed_options(model, None, {}), kinds())
"""

# A graph in memory and programs in files, judged by a compiler that refuses tanh.
JUDGED = """
import sys, npu_compiler, npu_runtime, torch
graph = npu_compiler.GraphBuilder(verify="off")
graph.compile(graph.parameter((2, 3)) + 1)
print(graph.run(torch.ones(2, 3, device="npu")).sum().item())
for path in sys.argv[1:]:
    try:
        npu_runtime.load_program(path, name="m", options={"INFERENCE_PRECISION_HINT": "f16"})
        print("loaded")
    except npu_runtime.ProgramError as error:
        print(error)
"""

# Memory that is given back, and taken again at the same addresses, between two runs of a request.
AGAIN = """
import npu_compiler, torch
graph = npu_compiler.GraphBuilder(verify="off")
graph.compile(graph.parameter((37, 11)) + 1)
places = []
for _ in range(2):
    x = torch.rand(37, 11, device="npu")
    y = graph.run(x)
    assert torch.equal(y.cpu(), x.cpu() + 1)
    places.append((x.data_ptr(), y.data_ptr()))
    del x, y
    torch.npu.empty_cache()
print(places[0] == places[1])
"""

# Two large blocks, the lower of which is used when the one that begins at its end is imported.
NEIGHBOURS = """
import ctypes, json, os
import npu_compiler, torch
graph = npu_compiler.GraphBuilder(verify="off")
graph.compile(graph.parameter((1, 1 << 20)) + 1)
low, high = (torch.rand(1, 1 << 20, device="npu") for _ in range(2))
print(high.data_ptr() - low.data_ptr() - 4 * low.numel())
for x in (high, low):
    assert torch.equal(graph.run(x).cpu(), x.cpu() + 1)
record = ctypes.CDLL(os.environ["NPU_OPENVINO_LIBRARY"]).npu_stub_record
record.restype = ctypes.c_char_p
print(json.loads(record()).get("copies", 0))
"""

REFUSED = """
import sys, torch, npu_runtime
free, state, fixed = sys.argv[1:]
for path, options in (
    (free, {}), (state, {}), (fixed, {}), (fixed, {"SNIPPETS_MODE": "DISABLE"})
):
    try:
        program = npu_runtime.load_program(
            path, name="m", options={"INFERENCE_PRECISION_HINT": "f16", **options}
        )
        session = program.session()
        runs = [session.run([torch.ones(1, 2, device="npu")])[0].sum().item() for _ in range(3)]
        print(runs)
    except npu_runtime.ProgramError as error:
        print(error)
"""

# A graph with dynamic sizes, with the real compiler, or with one that ignores an NPU's needs.
VARYING = """
import ctypes, json, os, sys
import torch
from npu_compiler.npu_rules import operations
from npu_compiler import buckets
if sys.argv[1] == "broken":
    buckets.wants_static_programs = lambda config: False
    operations.varying_operations = lambda model: []
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
compiled = torch.compile(model, backend="npu", dynamic=True)
with torch.no_grad():
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
record = ctypes.CDLL(os.environ["NPU_OPENVINO_LIBRARY"]).npu_stub_record
record.restype = ctypes.c_char_p
told = json.loads(record())
print(told.get("compiled", 0), told.get("refused", 0))
"""

# The NPU as a command without torch describes it, and as the driver does.
DESCRIBED = """
import os
from npu_runtime import _C
from npu_runtime.info import serving_device
found = serving_device(os.environ["NPU_OPENVINO_LIBRARY"], os.environ["NPU_DEVICE"])
opened = _C.device_properties(0)
print(found == {name: opened[name] for name in found}, found["device"], found["driver_version"])
"""

# A language model, as npu-llm runs it on an NPU, or with the cache as the program's state.
STATE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from npu_llm import NPUModelForCausalLM
from npu_llm.models import load_options
from npu_runtime import ProgramError
if sys.argv[1] == "broken":
    load_options.choose_pipeline = lambda name, device: "dynamic"
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "max_position_embeddings": 64}
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
model.save_pretrained("model")
greedy = {"max_new_tokens": 3, "do_sample": False}
tokens = torch.tensor([[1, 2, 3]])
try:
    ours = NPUModelForCausalLM.from_pretrained("model", dtype="float32")
    print(ours.generate(tokens, **greedy).tolist() == model.generate(tokens, **greedy).tolist())
except ProgramError as error:
    print("refused" if "Upper bounds were not specified" in str(error) else error)
"""

# Uses of memory by a build of the driver, through its table.
DRIVER = """
import ctypes, json, sys
from npu_runtime.driver_conformance.bench import Bench
from npu_runtime.driver_conformance.driver_table import Direction
from npu_runtime.driver_conformance.isolation import LastCall
from npu_runtime.driver_conformance.locate import DriverUnderTest, table_of_library
from npu_runtime.driver_conformance.program_set import openvino_programs
built, stub = sys.argv[1:]
bench = Bench(
    DriverUnderTest("openvino", lambda: table_of_library(built), vendor_library=stub, device="NPU",
                    programs=openvino_programs()),
    LastCall(),
)
bench.open()
record = ctypes.CDLL(stub).npu_stub_record
record.restype = ctypes.c_char_p
program, stream = bench.load(bench.programs().add_one), bench.stream()
request, x, y = bench.request(program), bench.floats(range(64)), bench.floats([0] * 64)
bench.bind(request, Direction.INPUT, 0, x, [64])
bench.bind(request, Direction.OUTPUT, 0, y, [64])
for _ in range(2):
    bench.run(request, stream)
assert bench.read_floats(y, 64).tolist() == list(range(1, 65))
for block in (x, y):
    bench.must("memory_decommit", 0, block.address, block.size_bytes)
told = json.loads(record())
print(told.get("copies", 0), told["imports_alive"])
for block in (x, y):
    bench.must("memory_commit", 0, block.address, block.size_bytes)
bench.write(x, bytes(256))
bench.run(request, stream)
assert bench.read_floats(y, 64).tolist() == [1] * 64
print("again")
"""
PARTS = (
    *("openvino", "openvino_api", "openvino_devices", "openvino_imports", "openvino_layer_shapes"),
    *("openvino_parts", "openvino_programs", "openvino_requests"),
    *("host_device", "host_memory", "host_streams", "work_queue"),
)
# Begins the driver's source: whether the variable BREACH names a breach of the rules.
PLANTED = """
#include <cstdlib>
#include <string_view>
static bool is_planted(const char* name) {
  const char* chosen = std::getenv("BREACH");
  return chosen != nullptr && std::string_view(chosen) == name;
}
"""
# A part of the driver, its text, and its replacement, by name of the breach.
BREACHES = {
    "unaligned": (
        "openvino_imports",
        "import(range, begin,",
        'import(range, begin + (is_planted("unaligned") ? 64 : 0),',
    ),
    "kept imported": (
        "openvino_imports",
        "range = all.by_address.erase(range);",
        'if (is_planted("kept imported")) ++range; else range = all.by_address.erase(range);',
    ),
    "told once": (
        "openvino_requests",
        "if (!bound.is_bound)",
        'if (!bound.is_bound || (bound.is_told && is_planted("told once")))',
    ),
}
ENTRY = """
#include "driver/openvino.h"
extern "C" __attribute__((visibility("default"))) const npu_driver* npu_driver_table() {
  return npu::openvino::driver_table();
}
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def on_stub(run, stub):
    """Runs code in a process with the stub's NPU as its device; returns the printed lines."""

    def run_code(code: str, *arguments: str) -> list[str]:
        chosen = {"NPU_DEVICE": "NPU", "NPU_OPENVINO_LIBRARY": str(stub)}
        done = run("python", "-c", code, *arguments, **chosen)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run_code


def test_memory_of_the_pool_is_never_copied_and_other_memory_is(on_stub):
    first, second, third = on_stub(MEMORY)
    assert first == "[] 52 0"
    assert second == "True 0"
    assert int(third) > 0


def test_memory_that_was_given_back_and_taken_again_serves_the_same_request(on_stub):
    assert on_stub(AGAIN) == ["True"]


def test_an_npu_is_described_without_torch_as_its_driver_describes_it(on_stub):
    (line,) = on_stub(DESCRIBED)
    assert line.startswith("True NPU ")
    assert line.endswith("; driver 1000000")


def test_a_blob_is_imported_as_its_compiler_wrote_it(on_stub, tmp_path):
    x = ops.parameter([1, 2], np.float32, name="x")
    compiled = openvino_core().compile_model(ov.Model([ops.relu(x)], [x], "m"), "CPU")
    good, bad = tmp_path / "good.blob", tmp_path / "bad.blob"
    good.write_bytes(compiled.export_model().getvalue() + bytes(4096))
    bad.write_bytes(b"\x7fELF" + bytes(4092))
    imported, refused = on_stub(IMPORTED, str(good), str(bad))
    assert imported == "4000 True [[0.0, 2.0]]"
    assert "ov_core_import_model" in refused


def test_large_memory_below_an_import_is_not_copied(on_stub):
    assert on_stub(NEIGHBOURS) == ["4096", "0"]


def test_programs_are_refused_in_the_plugins_words(on_stub, tmp_path):
    def save(name: str, model: ov.Model) -> str:
        ov.save_model(model, tmp_path / f"{name}.xml")
        return str(tmp_path / f"{name}.xml")

    def counter(batch: int) -> ov.Model:
        x = ops.parameter([batch, 2], np.float32, name="x")
        start = ops.broadcast(np.float32(0), ops.shape_of(x))
        state = ops.read_value(start, "sum", ov.Type.f32, ov.PartialShape([batch, 2]))
        total = ops.add(state, x)
        return ov.Model([ops.result(total)], [ops.assign(total, "sum")], [x], "counter")

    free = ops.parameter([-1, 2], np.float32, name="x")
    paths = [save("free", ov.Model([ops.relu(free)], [free], "free")), save("state", counter(-1))]
    paths.append(save("fixed", counter(1)))
    varying, state, fixed, unknown = on_stub(REFUSED, *paths)
    assert "Upper bounds were not specified" in varying
    assert "Upper bounds were not specified" in state
    assert fixed == "[2.0, 4.0, 6.0]"
    assert "Option 'SNIPPETS_MODE' is not supported for current configuration" in unknown


def test_known_defects_of_the_cpu_plugin_are_avoided_for_the_stub(on_stub, root):
    found = on_stub(CPU_DEFECT, str(root / "tools/npu_stub"))
    assert found == ["{} {'Greater'}", "{} {'Less'}"]


@pytest.mark.parametrize("compiler, told", [("right", "2 0"), ("broken", "0 1")])
def test_a_compiler_that_forgets_static_shapes_is_noticed(on_stub, compiler, told):
    assert on_stub(VARYING, compiler) == [told]


@pytest.mark.parametrize("compiler, told", [("right", "True"), ("broken", "refused")])
def test_a_language_model_with_its_cache_as_state_is_noticed(on_stub, compiler, told):
    assert on_stub(STATE, compiler) == [told]


class RefusesTanh:
    """In place of Intel's compiler."""

    version = "1.0"

    def compile(self, model: ov.Model, target: str) -> SimpleNamespace:
        found = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() == "Tanh"]
        reason = f"unsupported tanh on {target}" if found else ""
        operation = found[0] if found else ""
        return SimpleNamespace(is_accepted=not found, reason=reason, operation=operation)


def test_a_compiler_judges_each_program_on_the_stub(run, stub, tmp_path):
    paths = []
    for name, operation in (("relu", ops.relu), ("tanh", ops.tanh)):
        x = ops.parameter([2, 3], np.float32, name="x")
        paths.append(str(tmp_path / f"{name}.xml"))
        ov.save_model(ov.Model([operation(x)], [x], name), paths[-1])
    judged = Verdicts(RefusesTanh(), tmp_path / "record")
    environment = {
        "NPU_DEVICE": "NPU",
        "NPU_OPENVINO_LIBRARY": str(stub),
        "NPU_STUB_COMPILER": str(tmp_path / "socket"),
        "PYTEST_CURRENT_TEST": "this test",
    }
    with serving(judged, tmp_path / "socket"):
        done = run("python", "-c", JUDGED, *paths, **environment)
    assert done.returncode == 0, done.stderr
    in_memory, first, second = done.stdout.splitlines()
    assert (in_memory, first) == ("12.0", "loaded")
    assert "unsupported tanh on 4000" in second
    record = (tmp_path / "record" / "verdicts.jsonl").read_text()
    lines = [json.loads(line) for line in record.splitlines()]
    assert [line["test"] for line in lines] == ["this test"] * 3
    assert [line["reason"] for line in lines] == ["", "", "unsupported tanh on 4000"]
    assert (tmp_path / "record" / lines[-1]["model"]).is_file()
    assert "3 programs, 1 refused" in str(judged)
    assert "1 the rules take, the compiler refuses: unsupported tanh on 4000" in str(judged)


def test_a_compiler_that_does_not_reply_refuses(run, stub, tmp_path):
    environment = {
        "NPU_DEVICE": "NPU",
        "NPU_OPENVINO_LIBRARY": str(stub),
        "NPU_STUB_COMPILER": str(tmp_path / "socket"),
    }
    done = run("python", "-c", JUDGED, **environment)
    assert "the server of verdicts did not reply" in done.stderr


def test_each_expected_failure_names_a_test_that_is_there(root):
    for pattern in expected_failures.patterns(is_judged=True):
        path, _, rest = pattern.replace("[[]", "[").partition("::")
        files = [file for file in root.glob(path) if file.is_file()]
        assert files, pattern
        name = rest.partition("[")[0].rpartition("::")[2]
        found = [line for file in files for line in file.read_text().splitlines()]
        assert any(fnmatch.fnmatchcase(line.strip(), f"*def {name}(*") for line in found), pattern


@pytest.fixture(scope="module")
def driver(root, tmp_path_factory) -> Path:
    """npu-runtime's driver as a separate library, with all BREACHES in it."""
    sources, folder = root / "packages/npu-runtime/csrc", tmp_path_factory.mktemp("driver")
    texts = {part: (sources / "driver" / f"{part}.cpp").read_text() for part in PARTS}
    for part, before, after in BREACHES.values():
        assert before in texts[part]
        texts[part] = texts[part].replace(before, after)
    whole, library = folder / "driver.cpp", folder / "libdriver.so"
    whole.write_text("\n".join([PLANTED, *texts.values(), ENTRY]))
    searched = [sources.parent / "include", sources, Path(ov.__file__).parent / "include"]
    flags = ["-shared", "-fPIC", "-std=c++20", "-O0", "-fvisibility=hidden"]
    command = ["g++", *flags, *(f"-I{place}" for place in searched), whole, "-o", library]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(
    "breach, told",
    [
        ("", ["0 0", "again"]),
        ("unaligned", ["4 0", "again"]),
        ("kept imported", ["0 2", "again"]),
        ("told once", ["0 0"]),
    ],
)
def test_a_driver_that_breaks_a_rule_is_noticed(run, driver, stub, breach, told):
    done = run("python", "-c", DRIVER, str(driver), str(stub), BREACH=breach)
    assert done.stdout.splitlines() == told, done.stderr

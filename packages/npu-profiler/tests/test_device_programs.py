"""The whole way from a program on the device to its place in the trace, by real programs."""

import importlib.util
import re

import pytest

pytestmark = pytest.mark.usefixtures("relu_model")

LOAD = """
import threading, torch, npu_runtime
relu = npu_runtime.load_program(
    "model.xml", name="relu", options={"INFERENCE_PRECISION_HINT": "f32"}
)
x = torch.tensor([[-1.0, 0.0, 1.0], [2.0, -2.0, 0.5]])
"""

needs_ops = pytest.mark.skipif(
    importlib.util.find_spec("npu_ops") is None, reason="npu-ops is not installed"
)
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("npu_compiler") is None, reason="npu-compiler is not installed"
)


def enclosing(traced, event):
    """The innermost slice around the moment of `event` on its row."""
    around = [
        item
        for item in traced.events("X")
        if (item["pid"], item["tid"]) == (event["pid"], event["tid"])
        and item["ts"] <= event["ts"] <= item["ts"] + item["dur"]
    ]
    return min(around, key=lambda item: item["dur"])


def test_each_run_of_a_program_is_a_slice_with_an_arrow_from_its_launcher(run_trace):
    traced = run_trace(LOAD + "for _ in range(3):\n    print(relu.run([x])[0].tolist())\n")
    assert traced.stdout == "[[0.0, 0.0, 1.0], [2.0, 0.0, 0.5]]\n" * 3
    programs = traced.events("X", "program")
    assert [item["name"] for item in programs] == ["relu"] * 3
    assert {item["pid"] for item in programs} == {traced.processes()["npu:0"]}
    sources, targets = traced.events("s", "launch"), traced.events("f", "launch")
    assert len(sources) == 3
    for source, target in zip(sources, targets, strict=True):
        assert enclosing(traced, source)["pid"] == traced.processes()["python program.py"]
        assert enclosing(traced, target)["name"] == "relu"
    assert enclosing(traced, sources[0])["name"] == "npu::program relu"
    assert "relu" in traced.names("X", "compile")
    assert "3 device programs" in traced.stderr


def test_programs_of_four_threads_stand_side_by_side(run_trace):
    traced = run_trace(
        LOAD
        + "work = lambda: [relu.run([x]) for _ in range(25)]\n"
        + "threads = [threading.Thread(target=work, name=f'w{n}') for n in range(4)]\n"
        + "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    assert len(traced.events("X", "program")) == 100
    rows = traced.rows()
    counts = [
        sum((e["pid"], e["tid"]) == rows[f"w{n}"] for e in traced.events("s", "launch"))
        for n in range(4)
    ]
    assert counts == [25] * 4


def test_stacks_lead_from_the_python_call_to_the_program(run_trace):
    traced = run_trace(
        LOAD + "def next_token():\n    return relu.run([x])\nnext_token()\n", options=("--stacks",)
    )
    (call,) = [e for e in traced.events("X") if e["name"].endswith("): next_token")]
    (source,) = traced.events("s", "launch")
    assert call["ts"] <= source["ts"] <= call["ts"] + call["dur"]


def test_arrows_of_enqueued_programs_start_at_the_call_that_enqueued_them(run_trace):
    traced = run_trace(
        LOAD
        + """
from npu_runtime import sim
x = x.to("npu")
def work():
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(5):
            y = relu.run([x])[0]
        torch.npu.current_stream().synchronize()
with sim.delay(50_000, 60_000, seed=1):
    threads = [threading.Thread(target=work, name=f"w{n}") for n in range(2)]
    [t.start() for t in threads]; [t.join() for t in threads]
""",
        NPU_DRIVER="sim",
    )
    assert traced.returncode == 0, traced.stderr
    programs = {(e["pid"], e["tid"], e["ts"]): e for e in traced.events("X", "program")}
    targets = {flow["id"]: flow for flow in traced.events("f", "launch")}
    sources = traced.events("s", "launch")
    assert len(programs) == len(sources) == 10
    rows = traced.rows()
    for source in sources:
        launch = enclosing(traced, source)
        assert launch["name"] in ("launch relu", "npu::program relu")
        assert (launch["pid"], launch["tid"]) in (rows["w0"], rows["w1"])
        target = targets[source["id"]]
        program = programs[target["pid"], target["tid"], target["ts"]]
        assert program["args"]["enqueue_thread_id"] == launch["tid"]
        # The device takes 50 ms, the call that enqueues does not wait for it.
        assert launch["ts"] + launch["dur"] < program["ts"] + program["dur"]
        waited_us = program["ts"] - source["ts"]
        assert program["args"]["queued_us"] == pytest.approx(waited_us, abs=0.01)
    depths = {}
    for event in traced.events("C"):
        if event["name"].startswith("queue of stream "):
            depths.setdefault(event["name"], []).append(event["args"]["programs"])
    assert len(depths) == 2
    for of_stream in depths.values():
        assert len(of_stream) == 10
        assert (max(of_stream), of_stream[-1]) == (5, 0)
    waits = [e for e in traced.events("X", "sync") if e["name"] == "synchronize stream"]
    assert {(e["pid"], e["tid"]) for e in waits} == {rows["w0"], rows["w1"]}


# Sixteen million numbers: a program that takes long enough for its layer to be reported.
LAYERED = (
    LOAD.replace("model.xml", "large.xml")
    + """
x = torch.randn(4096, 4096)
for _ in range(7):
    y = relu.run([x])[0]
print(bool((y == x.relu()).all()))
"""
)


def test_layers_of_the_first_runs_and_of_every_kth_stand_in_their_programs(run_trace):
    options = ("--layers", "--layers-first", "2", "--layers-every", "3")
    traced = run_trace(LAYERED, options=options)
    assert traced.stdout == "True\n"
    with_layers = []
    for number, program in enumerate(traced.events("X", "program")):
        start, end = program["ts"], program["ts"] + program["dur"]
        layers = [e for e in traced.events("X", "layer") if start <= e["ts"] < end]
        if layers:
            with_layers.append(number)
            assert {(e["pid"], e["tid"]) for e in layers} == {(program["pid"], program["tid"])}
    assert with_layers == [0, 1, 4]
    layer = traced.events("X", "layer")[0]
    assert (layer["name"], layer["args"]["precision"]) == ("relu", "f32")
    assert {"type", "implementation", "duration_us"} <= layer["args"].keys()
    assert "layers of 3 runs" in traced.stderr


def test_without_the_option_no_layer_is_recorded(run_trace):
    traced = run_trace(LOAD + "for _ in range(7):\n    relu.run([x])\n")
    assert len(traced.events("X", "program")) == 7
    assert traced.events("X", "layer") == []


@needs_ops
def test_eager_script_on_npu_shows_copies_fallbacks_memory_and_equal_results(run_trace, run_forked):
    traced = run_trace("""
import torch
torch.manual_seed(0)
x = torch.randn(64, 64).to("npu").requires_grad_()
y = (x @ x).roll(1).sum()
y.backward()
print(y.item(), x.grad.cpu().sum().item())
""")
    assert traced.returncode == 0
    assert traced.stdout == run_forked("program.py").stdout != ""
    assert "cpu to npu" in traced.names("X", "copy")
    assert any(name.startswith("aten::roll") for name in traced.names("i", "fallback"))
    values = [event["args"]["allocated_bytes"] for event in traced.events("C")]
    assert max(values) >= 64 * 64 * 4
    assert "aten::mm" in traced.names("X", "cpu_op")
    assert "MmBackward0" in traced.names("X", "cpu_op")


@needs_compiler
def test_compiled_model_shows_its_phases_and_programs(run_trace):
    traced = run_trace("""
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU()).to("npu").eval()
compiled = torch.compile(model, backend="npu")
with torch.no_grad():
    for _ in range(3):
        result = compiled(torch.ones(4, 8, device="npu"))
print(result.shape)
""")
    assert traced.returncode == 0, traced.stderr
    programs = traced.events("X", "program")
    assert len(programs) == 3
    assert len(traced.events("s", "launch")) == 3
    assert {"capture", "lower"} <= set(traced.names("X", "compile"))


MODEL = """
import torch, npu_profiler

class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(512, 2048)
        self.down = torch.nn.Linear(2048, 512)

    def forward(self, x):
        wide = self.up(x)
        return self.down(wide)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

torch.manual_seed(0)
compiled = torch.compile(Model().to("npu").eval(), backend="npu")

def step():
    with torch.no_grad():
        return compiled(torch.ones(64, 512, device="npu"))

for _ in range(3):
    print(step().cpu().sum().item())
    npu_profiler.step()
"""


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("programs"))


def layers_by_name(traced):
    return {
        layer["name"].partition("/")[0]: (layer["args"].get("module"), layer["args"].get("line"))
        for layer in traced.events("X", "layer")
    }


def line_of(text):
    return f"program.py:{1 + MODEL.splitlines().index(text)}"


@pytest.mark.long  # 12 s: Python calls are recorded
@needs_compiler
def test_stacks_and_layers_lead_from_the_python_line_to_the_layer_and_back(run_trace, cache_folder):
    # The first step is left out: compiling takes minutes when its Python calls are recorded.
    options = ("--stacks", "--layers", "--modules", "--warmup", "1", "--steps", "1")
    traced = run_trace(MODEL, options=options, NPU_COMPILE_CACHE_DIR=cache_folder)
    assert traced.returncode == 0, traced.stderr
    up, down = line_of("        wide = self.up(x)"), line_of("        return self.down(wide)")
    assert sorted(origin for origin in layers_by_name(traced).values() if origin[0]) == [
        ("layers.0.down", down),
        ("layers.0.up", up),
        ("layers.1.down", down),
        ("layers.1.up", up),
    ]
    calls = traced.events("X", "python_function")
    (step,) = [call for call in calls if re.fullmatch(r"program\.py\(\d+\): step", call["name"])]
    (program,) = traced.events("X", "program")
    (source,), (target,) = traced.events("s", "launch"), traced.events("f", "launch")
    assert step["ts"] <= source["ts"] <= step["ts"] + step["dur"]
    assert enclosing(traced, source)["name"] == f"npu::program {program['name']}"
    assert target["ts"] == program["ts"]
    end = program["ts"] + program["dur"]
    layers = traced.events("X", "layer")
    assert len(layers) >= 4
    assert all(program["ts"] <= layer["ts"] <= end for layer in layers)
    (module,) = traced.events("X", "module")
    assert module["name"] == "Model"
    assert module["ts"] <= source["ts"] <= module["ts"] + module["dur"]


@needs_compiler
def test_layers_of_a_compiled_model_know_their_module_and_line(run_trace, cache_folder):
    traced = run_trace(MODEL, options=("--layers",), NPU_COMPILE_CACHE_DIR=cache_folder)
    down = line_of("        return self.down(wide)")
    assert ("layers.1.down", down) in layers_by_name(traced).values()

"""The device in torch's profiler, for whole processes: drivers, ends and late imports. On the
simulated device every program is enqueued, and a stream is a separate thread.
"""

import pytest

SETUP = """
import torch, npu_runtime, numpy as np, openvino as ov, os, tempfile, threading
from npu_runtime import sim
from openvino import opset13 as ops
from torch.profiler import ProfilerActivity, profile
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
p = ops.parameter([64], np.float32, name="x")
path = os.path.join(tempfile.mkdtemp(), "m.xml")
ov.save_model(ov.Model([ops.add(p, ops.constant(np.float32(1)))], [p], "add_one"), path)
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
program = npu_runtime.load_program(path, name="add_one", options=F32)
x = torch.ones(64, device="npu")
"""


# In the order in which one process does them: the last is still running when it ends.
WINDOWS = {
    "work pending at stop": (
        # torch.profiler waits for the device before it stops; kineto's stop does not.
        "wait, torch.npu.synchronize = torch.npu.synchronize, lambda *_: None\n"
        "with sim.delay(3000, 5000):\n"
        "    for _ in range(5):\n"
        "        with profile(activities=BOTH) as p:\n"
        "            for _ in range(4): program.run([x])\n"
        "        p.events()\n"
        "torch.npu.synchronize = wait\n"
    ),
    "one within another": (
        "for _ in range(5):\n"
        "    with profile(activities=BOTH):\n"
        "        program.run([x])\n"
        "        with profile(activities=BOTH): program.run([x])\n"
        "        program.run([x])\n"
        "with profile(activities=BOTH) as p: program.run([x])\n"
        "assert [e.name for e in p.events()].count('add_one') == 1\n"
    ),
    "other threads run on": (
        "stop = threading.Event()\n"
        "def work():\n"
        "    mine = torch.ones(64, device='npu')\n"
        "    with torch.npu.stream(torch.npu.Stream()):\n"
        "        while not stop.is_set(): program.run([mine])[0].cpu()\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "[t.start() for t in threads]\n"
        "for _ in range(5):\n"
        "    with profile(activities=BOTH) as p:\n"
        "        for _ in range(20): program.run([x])[0].cpu()\n"
        "    assert any(e.name == 'add_one' for e in p.events())\n"
        "stop.set(); [t.join() for t in threads]\n"
    ),
    "running at exit": (
        "p = profile(activities=BOTH); p.start()\nfor _ in range(4): program.run([x])\nkeep = p\n"
    ),
}


@pytest.mark.parametrize("driver", ["openvino", "sim"])
def test_no_end_of_a_window_ends_the_process(run_python, driver):
    code = "".join(f"{code}print({name!r}, flush=True)\n" for name, code in WINDOWS.items())
    done = run_python(SETUP + code, is_real=True, NPU_DRIVER=driver)
    assert done.stdout.splitlines() == list(WINDOWS), done.stderr
    assert done.returncode == 0, done.stderr


def test_enqueued_programs_lead_back_to_the_threads_that_enqueued_them(
    run_python, read_trace, tmp_path
):
    path = tmp_path / "sim.json"
    done = run_python(
        SETUP + "def work():\n"
        "    mine = torch.ones(64, device='npu')\n"
        "    with torch.npu.stream(torch.npu.Stream()):\n"
        "        for _ in range(5): program.run([mine])\n"
        "        torch.npu.current_stream().synchronize()\n"
        "c = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)\n"
        "with sim.delay(1000, 2000), profile(activities=BOTH, experimental_config=c) as p:\n"
        "    threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
        f"p.export_chrome_trace({str(path)!r})\n"
        "ops = [e for e in p.events() if e.name == 'npu::program add_one']\n"
        "print(len(ops), {len(op.kernels) for op in ops})\n",
        NPU_DRIVER="sim",
    )
    assert done.stdout.split("\n")[0] == "15 {1}", done.stdout + done.stderr
    trace = read_trace(path.read_text())
    launches = {
        span["args"]["correlation"]: span
        for span in trace.of("privateuse1_runtime")
        if span["name"] == "npu::launch"
    }
    assert len(launches) == 15
    assert len({span["tid"] for span in launches.values()}) == 3
    runs = trace.of("kernel")
    assert len({trace.row(run) for run in runs}) == 3
    for run in runs:
        launch = launches[run["args"]["correlation"]]
        assert run["args"]["External id"] == launch["args"]["External id"]
        assert launch["ts"] + launch["dur"] < run["ts"] + run["dur"]
        assert trace.flow_starts[run["args"]["correlation"]]["tid"] == launch["tid"]
        assert run["args"]["queued_us"] >= 0


def test_two_devices_are_two_processes_of_the_trace(run_python, read_trace, tmp_path):
    path = tmp_path / "two.json"
    done = run_python(
        SETUP + "other = npu_runtime.load_program("
        "path, name='other', device_index=1, options=F32)\n"
        "y = torch.ones(64, device='npu:1')\n"
        "with profile(activities=BOTH) as p:\n"
        "    program.run([x]); other.run([y]); torch.npu.synchronize(1)\n"
        f"p.export_chrome_trace({str(path)!r})\n",
        NPU_DRIVER="sim",
        NPU_DEVICE="SIM2",
    )
    assert done.returncode == 0, done.stderr
    trace = read_trace(path.read_text())
    found = {run["name"]: trace.processes[run["pid"]] for run in trace.of("kernel")}
    assert found == {"add_one": "npu:0", "other": "npu:1"}


def test_a_runtime_that_is_imported_after_a_profile_registers_all_the_same(run_python):
    done = run_python(
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "with profile(activities=[ProfilerActivity.CPU]): torch.ones(2)\n"
        "import npu_runtime\n"
        "x = torch.ones(64)\n"
        "with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:\n"
        "    x.to('npu')\n"
        "print([e.name for e in p.events() if e.name == 'cpu to npu'])\n",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.strip().endswith("['cpu to npu']"), done.stdout + done.stderr

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest

EAGER = """
import threading, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
loss = model(torch.randn(4, 8)).sum()
loss.backward()
print(loss.item(), model[0].weight.grad.sum().item())
"""


def test_eager_script_shows_ops_and_backward_and_gives_the_same_results(run_trace, run_python):
    traced = run_trace(EAGER, is_new=True)
    assert traced.returncode == 0
    assert traced.stdout == run_python("program.py").stdout != ""
    names = traced.names("X", "cpu_op")
    assert names.count("aten::linear") == 2
    assert "AddmmBackward0" in names
    assert "forward to backward" in traced.names("s")
    assert "python program.py" in traced.processes()
    assert "main thread" in traced.rows()


def test_summary_goes_to_stderr_only(run_trace):
    traced = run_trace("import torch; torch.ones(2).sin(); print('out')")
    assert traced.stdout == "out\n"
    assert f"wrote {traced.path}" in traced.stderr
    assert "top ops by self time" in traced.stderr
    assert "fallbacks: 0" in traced.stderr
    assert "https://ui.perfetto.dev" in traced.stderr


def test_environment_set_before_torch_counts(run_trace):
    traced = run_trace(
        "import os; os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import torch; print(torch.get_num_threads(), os.environ.get('KINETO_LOG_LEVEL'))",
        is_new=True,
    )
    assert traced.stdout == "1 None\n"


def test_program_without_torch_has_its_process(run_trace):
    traced = run_trace("import sys; print('torch' in sys.modules)", is_new=True)
    assert traced.stdout == "False\n"
    assert list(traced.processes()) == ["python program.py"]


def test_arguments_reach_the_script_untouched(run_trace):
    arguments = ("-o", "x", "--stacks", "--", "-m")
    traced = run_trace("import sys; print(sys.argv)", *arguments, is_new=True)
    assert traced.stdout == "['program.py', '-o', 'x', '--stacks', '--', '-m']\n"


def test_threads_have_rows_with_their_names(run_trace):
    traced = run_trace(
        "import threading, torch\n"
        "def work(n):\n    torch.ones(n + 1).sin()\n"
        "threads = [threading.Thread(target=work, args=(n,), name=f'worker-{n}')"
        " for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    rows = traced.rows()
    sines = [(e["pid"], e["tid"]) for e in traced.events("X") if e["name"] == "aten::sin"]
    assert sorted(sines) == sorted(rows[f"worker-{n}"] for n in range(4))


def test_thread_that_outlives_the_script_is_in_the_trace(run_trace):
    traced = run_trace(
        "import threading, time, torch, atexit\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), torch.ones(2).sin())).start()\n"
        "atexit.register(lambda: torch.ones(2).cos())\n"
    )
    assert {"aten::sin", "aten::cos"} <= set(traced.names("X"))


def test_stacks_show_python_calls_around_their_ops(run_trace):
    traced = run_trace(
        "import torch\ndef step():\n    return torch.ones(2).sin()\nstep()\n",
        options=("--stacks",),
    )
    (call,) = [e for e in traced.events("X", "python_function") if e["name"].endswith("): step")]
    (sine,) = [e for e in traced.events("X", "cpu_op") if e["name"] == "aten::sin"]
    assert call["ts"] <= sine["ts"]
    assert sine["ts"] + sine["dur"] <= call["ts"] + call["dur"]
    assert not [name for name in traced.names("X") if "npu_profiler/" in name]


def test_gz_suffix_compresses(run_trace):
    traced = run_trace("import torch; torch.ones(2).sin()", output="trace.json.gz")
    assert "aten::sin" in traced.names("X")


def test_module_runs_with_m(run_python, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__main__.py").write_text("import sys, torch; print(sys.argv[1:])")
    result = run_python("-m", "npu_profiler", "trace", "-o", "t.json", "-m", "job", "-x", "1")
    assert (result.returncode, result.stdout) == (0, "['-x', '1']\n")
    document = json.loads((tmp_path / "t.json").read_text())
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["python -m job"]


@pytest.mark.parametrize(
    "ending, code",
    [("raise ValueError('x')", 1), ("sys.exit(5)", 5), ("sys.exit('why')", 1), ("x = (", 1)],
)
def test_script_keeps_exit_code_and_message_and_leaves_a_trace(run_trace, run_python, ending, code):
    traced = run_trace(f"import sys\n{ending}\n", is_new=True)
    plain = run_python("program.py")
    assert traced.returncode == plain.returncode == code
    own = "".join(
        line
        for line in traced.stderr.splitlines(keepends=True)
        if not line.startswith("npu-profiler: ")
    )
    assert own == plain.stderr
    assert list(traced.processes()) == ["python program.py"]


def test_script_that_raises_leaves_its_ops(run_trace):
    traced = run_trace("import torch\ntorch.ones(2).sin()\n1 / 0\n")
    assert traced.returncode == 1
    assert "aten::sin" in traced.names("X")


WAITING = """
import time, torch
torch.ones(2).sin()
try:
    print("ready", flush=True)
    time.sleep(60)
finally:
    print("finally", flush=True)
"""


@pytest.mark.parametrize(
    "number, output",
    [(signal.SIGTERM, ""), (signal.SIGINT, "finally\n")],
    ids=["SIGTERM", "ctrl-c"],
)
def test_killed_script_leaves_a_whole_trace_and_dies_as_told(
    tmp_path, check_schema, number, output
):
    (tmp_path / "program.py").write_text(WAITING)
    process = subprocess.Popen(
        [sys.executable, "-m", "npu_profiler", "trace", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner in the background may ignore SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == -number
    assert stdout == output
    assert "wrote" in stderr
    document = json.loads((tmp_path / "trace.json").read_text())
    check_schema(document)
    assert "aten::sin" in [event["name"] for event in document["traceEvents"]]


@pytest.mark.parametrize("output", ["trace.json", "trace.json.gz"])
def test_script_killed_without_a_word_leaves_a_trace_that_can_be_opened(
    start_forked, tmp_path, output
):
    (tmp_path / "program.py").write_text(
        "import time, torch\ntorch.ones(2).sin()\n"
        "while True:\n    torch.ones(2).cos(); time.sleep(0.01)\n"
    )
    path = tmp_path / output
    command = ("-m", "npu_profiler", "trace", "-o", output, "program.py")
    with start_forked(*command) as process:
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and b"aten::cos" not in _bytes(path):
                time.sleep(0.02)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    # Perfetto takes an array of events without its closing bracket, and no other form cut off.
    text = _bytes(path).decode()
    assert text.startswith("[")
    events = json.loads(text + "]")
    assert {"aten::sin", "aten::cos"} <= {event["name"] for event in events}
    assert "python program.py" in [event.get("args", {}).get("name") for event in events]


def _bytes(path):
    if not path.exists():
        return b""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


TRAINING = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(6):
    with torch.profiler.record_function(f"step {step}"):
        layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(layer.weight.sum().item())
"""


def test_only_the_steps_asked_for_are_recorded_and_results_are_equal(run_trace, run_forked):
    traced = run_trace(TRAINING, options=("--steps", "2", "--warmup", "3"))
    assert traced.stdout == run_forked("program.py").stdout != ""
    assert traced.names("X", "user_annotation").count("step 3") == 1
    named = {name for name in traced.names("X", "user_annotation") if name.startswith("step ")}
    assert named == {"step 3", "step 4"}
    assert traced.names("X", "user_annotation").count("Optimizer.step#SGD.step") == 2


def test_program_with_fewer_steps_than_the_warmup_says_so(run_trace):
    traced = run_trace(TRAINING, options=("--warmup", "50"))
    assert "missing: all but the warm-up: 6 steps were marked" in traced.stderr
    assert traced.names("X") == []


def test_memory_of_the_process_is_a_curve(run_trace):
    traced = run_trace(
        "import time, torch\nx = torch.ones(64 << 20, dtype=torch.uint8)\ntime.sleep(0.3)\n",
        options=("--memory",),
    )
    values = [
        e["args"]["resident_bytes"] for e in traced.events("C") if "resident_bytes" in e["args"]
    ]
    assert len(values) >= 3
    assert max(values) > 64 << 20


def test_program_that_profiles_itself_gets_its_profile_and_we_ours(run_trace):
    traced = run_trace("""
import torch
from torch.profiler import profile, ProfilerActivity
torch.ones(2).sin()
with profile(activities=[ProfilerActivity.CPU]) as own:
    torch.ones(2).cos()
torch.ones(2).tan()
print("aten::cos" in [item.key for item in own.key_averages()])
""")
    assert (traced.returncode, traced.stdout) == (0, "True\n")
    assert {"aten::sin", "aten::cos", "aten::tan"} <= set(traced.names("X", "cpu_op"))


def test_program_that_profiles_itself_leaves_a_marked_gap_in_stacks(run_trace):
    traced = run_trace(
        """
import torch
from torch.profiler import profile, ProfilerActivity
torch.ones(2).sin()
with profile(activities=[ProfilerActivity.CPU]):
    torch.ones(2).cos()
torch.ones(2).tan()
""",
        options=("--stacks",),
    )
    assert {"aten::sin", "aten::tan"} <= set(traced.names("X", "cpu_op"))
    assert len(traced.names("X", "recording")) == 1


def test_forked_workers_do_not_disturb(run_trace):
    traced = run_trace("""
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(8.0))
print(sum(batch[0].sum().item() for batch in DataLoader(data, 2, num_workers=2)))
""")
    assert (traced.returncode, traced.stdout) == (0, "28.0\n")


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["none.py"], "script-missing"),
        ([], "script-missing"),
        (["-m", "no_such_module"], "module-missing"),
        (["-o", "none/trace.json", "there.py"], "output-unwritable"),
        (["-o", ".", "there.py"], "output-unwritable"),
        (["--steps", "-1", "there.py"], "trace-option"),
    ],
)
def test_wrong_request_is_one_line_and_exit_code_2_and_runs_nothing(
    run_python, tmp_path, arguments, code
):
    (tmp_path / "there.py").write_text("print('ran')")
    result = run_python("-m", "npu_profiler", "trace", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.endswith(f"[{code}]\n")
    assert os.listdir(tmp_path) == ["there.py"]  # noqa: PTH208


def test_trace_that_cannot_be_written_changes_no_exit_code(run_trace, tmp_path):
    (tmp_path / "place").mkdir()
    traced = run_trace(
        "import shutil, sys, torch; torch.ones(2).sin(); shutil.rmtree('place'); sys.exit(4)",
        output="place/trace.json",
    )
    assert traced.returncode == 4
    assert "was not written" in traced.stderr
    assert "Traceback" not in traced.stderr


def test_open_shows_the_trace_in_the_browser_until_ctrl_c(tmp_path):
    (tmp_path / "program.py").write_text("print('done')")
    (tmp_path / "browser.py").write_text(
        "import sys, urllib.request\n"
        "page = urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()\n"
        "open('shown', 'w').write(page)\n"
    )
    command = [sys.executable, "-m", "npu_profiler", "trace", "--open", "program.py"]
    browser = {"BROWSER": f"{sys.executable} browser.py %s"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **browser},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    shown = tmp_path / "shown"
    until = time.monotonic() + 60
    while not (shown.exists() and shown.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "<title>trace.json</title>" in shown.read_text()
    assert process.returncode == 0, errors
    assert "shows it until Ctrl-C" in errors
    assert "Traceback" not in errors

"""The page on architecture has the files that some calls pass, in the order of real calls."""

import json
import re

import pytest

# Runs a module or script with arguments, and writes which files of ours were entered, in order.
# What runs while a module is imported is not part of the call.
RECORD = """
import atexit, json, os, runpy, sys, threading

PACKAGES = ("npu_command", "npu_compiler", "npu_llm", "npu_ops", "npu_profiler", "npu_runtime")
known, entered = set(), {}

def importing(frame):
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
    return False

def note(frame, event, _):
    code = frame.f_code
    if event != "call" or code in known:
        return
    parts = code.co_filename.split(os.sep)
    packages = [name for name in PACKAGES if name in parts]
    is_function = code.co_flags & 1
    if packages and is_function and importing(frame):
        return  # a later call of it counts
    known.add(code)
    if packages and is_function:
        entered["/".join(parts[parts.index(packages[0]) :])] = None

def write():
    sys.setprofile(None)
    with open(out, "w") as file:
        json.dump(list(entered), file)

out, sys.argv = sys.argv[1], sys.argv[2:]
atexit.register(write)  # the first to be registered runs last
threading.setprofile(note)
sys.setprofile(note)
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

COMPILE = """
import torch

layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
options = {"target": "openvino"}
model = torch.compile(torch.nn.Sequential(*layers).eval(), backend="npu", options=options)
with torch.no_grad():
    model(torch.randn(2, 16))
"""

CHAT = """
import io, sys
from npu_llm.cli import main

sys.stdin = io.StringIO("Hi")
main(["chat", "--greedy", "--max-new-tokens", "2"])
"""

SERVE = """
import os, signal, socket, threading, time
from npu_llm.cli import main
from npu_llm.errors import ServerError
from npu_llm.serving.client import Connection

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

def ask():
    connection = Connection(f"http://127.0.0.1:{port}")
    while True:
        try:
            connection.models()
            break
        except ServerError:
            time.sleep(0.1)
    connection.chat([{"role": "user", "content": "Hi"}], max_tokens=2)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, daemon=True).start()
main(["serve", "--port", str(port)])
"""

TRACED = "import torch; torch.ones(2, device='npu').sum().item()"


def listed(root, call):
    page = (root / "docs" / "architecture.md").read_text()
    _, table = page.split(f"| `{call}` | What happens there |\n|---|---|\n")
    return re.findall(r"^\| `([^`]+)` \|", table.split("\n\n")[0], flags=re.MULTILINE)


@pytest.fixture
def passed(run, tmp_path):
    """Runs a call from an empty cache; returns the files that it entered, in order."""

    def passed(*arguments, start=run):
        (tmp_path / "record.py").write_text(RECORD)
        out = tmp_path / "entered.json"
        cache = str(tmp_path / "cache")
        done = start("python", "record.py", str(out), *arguments, XDG_CACHE_HOME=cache)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return passed


def assert_passed_in_order(files, entered):
    assert len(files) == len(set(files))
    assert files == [file for file in entered if file in set(files)]


def test_torch_compile_passes_the_files_of_its_list(root, tmp_path, passed):
    (tmp_path / "compile.py").write_text(COMPILE)
    assert_passed_in_order(listed(root, "torch.compile"), passed("compile.py"))


@pytest.mark.long
def test_generate_passes_the_files_of_its_list(root, passed):
    entered = passed("-m", "npu_llm.cli", "generate", "--greedy", "--max-new-tokens", "2", "Hi")
    assert_passed_in_order(listed(root, "npu-llm generate"), entered)


@pytest.mark.long
def test_chat_and_serve_pass_the_files_of_their_lists(root, tmp_path, passed):
    start = ("-m", "npu_llm.cli", "generate", "--greedy", "--max-new-tokens", "2", "Hi")
    passed(*start)  # the lists are those of a later start
    (tmp_path / "chat.py").write_text(CHAT)
    assert_passed_in_order(listed(root, "npu-llm chat"), passed("chat.py"))
    (tmp_path / "serve.py").write_text(SERVE)
    assert_passed_in_order(listed(root, "npu-llm serve"), passed("serve.py"))


def test_trace_passes_the_files_of_its_list(root, tmp_path, passed, run_new):
    (tmp_path / "traced.py").write_text(TRACED)
    command = ("-m", "npu_profiler", "trace", "-o", "trace.json", "traced.py")
    entered = passed(*command, start=run_new)  # the script's import of torch is part of it
    assert_passed_in_order(listed(root, "npu-profiler trace"), entered)

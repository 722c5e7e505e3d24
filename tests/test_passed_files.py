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

# Writes the files of the methods that run between the second and the fourth step of the kernels.
TOKEN = """
import io, json, os, sys
from npu_llm.cli import main

steps, files = 0, {}

def note(frame, event, _):
    global steps
    code = frame.f_code
    if event != "call":
        return
    steps += code.co_qualname == "Execution.step"
    name = code.co_qualname.split(".<locals>")[0]
    parts = code.co_filename.split(os.sep)
    ours = [name for name in ("npu_llm", "npu_ops", "npu_runtime") if name in parts]
    if 2 <= steps < 4 and "." in name and ours:
        files["/".join(parts[parts.index(ours[0]) :])] = None

sys.stdin = io.StringIO("Hi")
sys.setprofile(note)
main(["chat", "--greedy", "--max-new-tokens", "5"])
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    json.dump([steps, *files], file)
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
    page = (root / "docs/contributing/architecture.md").read_text()
    _, table = page.split(f"| `{call}` | What happens there |\n|---|---|\n")
    return re.findall(r"^\| `([^`]+)` \|", table.split("\n\n")[0], flags=re.MULTILINE)


def concepts(root):
    """The page's concepts of a token: name -> file."""
    page = (root / "docs/contributing/architecture.md").read_text()
    _, table = page.split("| Concept | Where it is | What it is |\n|---|---|---|\n")
    return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table.split("\n\n")[0], re.MULTILINE))


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


def test_at_most_fifteen_concepts_of_a_token_are_where_the_page_says(root):
    found = concepts(root)
    assert 0 < len(found) <= 15
    for name, file in found.items():
        (source,) = (root / "packages").glob(f"*/src/{file}")
        assert f"\nclass {name}" in source.read_text()


@pytest.mark.long
def test_generate_passes_the_files_of_its_list(root, passed):
    entered = passed("-m", "npu_llm.cli", "generate", "--greedy", "--max-new-tokens", "2", "Hi")
    assert_passed_in_order(listed(root, "npu-llm generate"), entered)


@pytest.mark.long
def test_chat_and_serve_pass_the_files_of_their_lists(root, tmp_path, passed, run):
    start = ("-m", "npu_llm.cli", "generate", "--greedy", "--max-new-tokens", "2", "Hi")
    passed(*start)  # the lists are of a later start
    (tmp_path / "chat.py").write_text(CHAT)
    assert_passed_in_order(listed(root, "npu-llm chat"), passed("chat.py"))
    (tmp_path / "serve.py").write_text(SERVE)
    assert_passed_in_order(listed(root, "npu-llm serve"), passed("serve.py"))
    (tmp_path / "token.py").write_text(TOKEN)
    out = tmp_path / "token.json"
    done = run("python", "token.py", str(out), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    steps, *files = json.loads(out.read_text())
    assert steps == 5
    assert set(files) <= set(concepts(root).values())


def test_trace_passes_the_files_of_its_list(root, tmp_path, passed, run_new):
    (tmp_path / "traced.py").write_text(TRACED)
    command = ("-m", "npu_profiler", "trace", "-o", "trace.json", "traced.py")
    entered = passed(*command, start=run_new)  # the script's import of torch is part of it
    assert_passed_in_order(listed(root, "npu-profiler trace"), entered)

"""Commands with a model from the compile cache do not import transformers or torch's compiler."""

import subprocess
import sys

import pytest

import npu_llm

# Prints which of the two a command imported, to standard error after its lines.
COMMAND = """
import io, sys
from npu_llm.cli import main

sys.stdin = io.StringIO("the quick")
code = main(sys.argv[1:])
print("imported:", *({"transformers", "torch._dynamo"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""

# As for the command, of a server that answers one request.
SERVER = """
import os, signal, socket, sys, threading, time
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
            connection.chat([{"role": "user", "content": "the quick"}], max_tokens=3)
            break
        except ServerError:
            time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, daemon=True).start()
main([*sys.argv[1:], "--port", str(port)])
print("imported:", *({"transformers", "torch._dynamo"} & set(sys.modules)), file=sys.stderr)
"""


# As for the command, of a greedy answer to token ids.
PYTHON = """
import sys, torch
import npu_llm

model, cache, dtype = sys.argv[3::2]
loaded = npu_llm.load(model, cache_dir=cache, dtype=dtype)
ids = torch.tensor([[1, 2, 3]])
answer = loaded.generate(ids, max_new_tokens=2, eos_token_id=None)
assert answer.shape == (1, 5)
print("imported:", *({"transformers", "torch._dynamo"} & set(sys.modules)), file=sys.stderr)
"""


# As for the command, if neither torch nor modules that need it can be imported.
WITHOUT_TORCH = """
import sys

sys.modules.update(dict.fromkeys(("torch", "transformers", "openvino")))
from npu_llm.cli import main

sys.exit(main(sys.argv[1:]))
"""


def imported(program, checkpoint, cache_dir, *arguments):
    place = ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
    line = [sys.executable, "-c", program, arguments[0], *place, *arguments[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = (line for line in done.stderr.splitlines() if line.startswith("imported:"))
    return found.removeprefix("imported:").split()


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "--max-new-tokens", "3"),
        ("generate", "--max-new-tokens", "3", "the quick"),
        ("generate", "--max-new-tokens", "3", "--stop", "x", "--top-k", "5", "the quick"),
        ("bench", "--prompt", "4", "--new", "2", "--batch", "1,2", "--repeats", "1"),
    ],
    ids=["chat", "generate", "sampling", "bench"],
)
def test_a_cached_command_imports_no_transformers(checkpoint, cache_dir, arguments):
    assert imported(COMMAND, checkpoint, cache_dir, *arguments) == []


def without_torch(*arguments):
    line = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


def test_an_exported_folder_answers_without_torch(checkpoint, shared, tmp_path):
    folder = tmp_path / "out"
    npu_llm.export(checkpoint, folder, dtype="float32", pipeline="kernels")
    asked = ("--seed", "3", "--max-new-tokens", "4", "the quick")
    done = without_torch("generate", "--model", folder, *asked)
    assert done.returncode == 0, done.stderr
    assert "holds a kernel program" in done.stderr
    with_torch = subprocess.run(
        [sys.executable, "-c", "import torch\n" + WITHOUT_TORCH.replace("sys.modules", "{}"),
         "generate", "--model", str(folder), *asked],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert with_torch.stdout == done.stdout
    refused = without_torch("generate", "--model", folder, "--kv-cache", "u8", "the quick")
    assert refused.returncode == 2
    assert "[torch-missing]" in refused.stderr


def test_a_cached_chat_imports_no_torch_before_it_saves(checkpoint, cache_dir, tmp_path):
    program = COMMAND.replace('"torch._dynamo"', '"torch"')
    assert imported(program, checkpoint, cache_dir, "chat", "-n", "3") == []
    place = f"the quick\n/save {tmp_path / 'a'}\nbrown"
    program = COMMAND.replace('"the quick"', repr(place))
    assert imported(program, checkpoint, cache_dir, "chat", "-n", "3") == []
    assert (tmp_path / "a").is_file()


def test_a_server_imports_no_transformers(checkpoint, cache_dir):
    assert imported(SERVER, checkpoint, cache_dir, "serve") == []


def test_a_greedy_answer_to_token_ids_imports_no_transformers(checkpoint, cache_dir):
    assert imported(PYTHON, checkpoint, cache_dir, "generate") == []

"""Traces of whole programs: each slice, arrow and curve that must be there, counted."""

import importlib.util
import json
import signal
import subprocess

import pytest

needs_ops = pytest.mark.skipif(
    importlib.util.find_spec("npu_ops") is None, reason="npu-ops is not installed"
)
needs_llm = pytest.mark.skipif(
    importlib.util.find_spec("npu_llm") is None, reason="npu-llm is not installed"
)

TRAINING = """
import threading, torch
torch.manual_seed(0)

def train():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.to("npu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device="npu")).sum()
        loss.backward()
        optimizer.step()

threads = [threading.Thread(target=train, name=f"trainer-{n}") for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@needs_ops
def test_training_in_four_threads_has_every_op_module_and_arrow_on_its_thread(run_trace):
    traced = run_trace(TRAINING, options=("--modules",))
    assert traced.returncode == 0, traced.stderr
    rows = traced.rows()
    slices = traced.events("X")
    for number in range(4):
        row = rows[f"trainer-{number}"]
        names = [e["name"] for e in slices if (e["pid"], e["tid"]) == row]
        # Three steps of two linear layers and an activation.
        assert (names.count("aten::linear"), names.count("aten::tanh")) == (6, 3)
        modules = [name for name in names if name in ("Sequential", "0", "1", "2")]
        assert sorted(modules) == sorted(["Sequential", "0", "1", "2"] * 3)
    backward = [e["name"] for e in slices]
    for node in ("AddmmBackward0", "TanhBackward0", "SumBackward0"):
        assert backward.count(node) == {"AddmmBackward0": 24}.get(node, 12)
    # An arrow for each node of the graph except the ones that only accumulate gradients.
    arrows = traced.names("s", "fwdbwd")
    assert len(arrows) == len(traced.names("f", "fwdbwd")) >= 48
    values = [e["args"]["allocated_bytes"] for e in traced.events("C")]
    assert max(values) > 0


IN_FORWARD = """
import time, torch

class Slow(torch.nn.Module):
    def forward(self, x):
        x = x.sin()
        print("ready", flush=True)
        time.sleep(60)
        return x

torch.nn.Sequential(Slow())(torch.ones(2))
"""


def test_script_killed_within_a_module_shows_where_it_was(start_forked, tmp_path, check_schema):
    (tmp_path / "program.py").write_text(IN_FORWARD)
    command = ("-m", "npu_profiler", "trace", "--modules", "program.py")
    with start_forked(*command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGTERM
    document = json.loads((tmp_path / "trace.json").read_text())
    check_schema(document)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    (sine,) = [event for event in slices if event["name"] == "aten::sin"]
    modules = [event for event in slices if event["cat"] == "module"]
    assert [event["name"] for event in modules] == ["Sequential", "0"]
    assert all(
        e["ts"] <= sine["ts"] < sine["ts"] + sine["dur"] <= e["ts"] + e["dur"] for e in modules
    )


def test_module_that_raises_is_in_the_trace(run_trace):
    traced = run_trace(
        "import torch\nclass Bad(torch.nn.Module):\n    def forward(self, x):\n        1 / 0\n"
        "torch.nn.Sequential(torch.nn.ReLU(), Bad())(torch.ones(2))\n",
        options=("--modules",),
    )
    assert traced.returncode == 1
    assert traced.names("X", "module") == ["Sequential", "0", "1"]
    assert "ZeroDivisionError" in traced.stderr


ANSWER = """
import torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=2000, max_position_embeddings=256,
)
model = transformers.AutoModelForCausalLM.from_config(config)
model.generation_config.eos_token_id = None
model.save_pretrained("model")
from npu_llm import NPUModelForCausalLM
model = NPUModelForCausalLM.from_pretrained("model", cache_dir="cache")
prompt = torch.arange(100, 116)[None]
print(model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False).tolist())
"""


@pytest.mark.long
@needs_llm
def test_answer_of_a_language_model_has_its_steps_programs_and_layers(run_trace, run_forked):
    traced = run_trace(ANSWER, options=("--layers", "--modules", "--memory"))
    assert traced.returncode == 0, traced.stderr
    assert traced.stdout == run_forked("program.py").stdout != ""
    assert len(traced.names("X", "prefill")) == 1
    assert len(traced.names("X", "decode")) == 7
    assert len(traced.names("X", "program")) == len(traced.names("s", "launch")) == 8
    layers = traced.events("X", "layer")
    assert "model.layers.1.mlp.down_proj" in {layer["args"].get("module") for layer in layers}
    lines = {layer["args"].get("line", "").partition(":")[0] for layer in layers}
    assert "transformers/models/llama/modeling_llama.py" in lines
    assert any("resident_bytes" in event["args"] for event in traced.events("C"))

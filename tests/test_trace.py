"""A trace across packages: the profiler around a language model's answer."""

import json


def test_trace_of_an_answer_holds_python_ops_and_programs(run, tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "from npu_llm.cli import main\n"
        "x = torch.randn(8, 8, device='npu')\n"
        "(x @ x).sum().item()\n"
        "sys.exit(main(['generate', '--greedy', '--max-new-tokens', '4', 'Hello']))\n"
    )
    done = run("npu-profiler", "trace", "-o", "trace.json", str(script))
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X"]
    categories = {event.get("cat") for event in spans}
    assert any("mm" in event["name"] for event in spans)
    assert any(category and "program" in category for category in categories), categories
    assert all(event["dur"] >= 0 for event in spans)
    # One clock: all events are between the first and the last moment of the process.
    first = min(event["ts"] for event in spans)
    last = max(event["ts"] + event["dur"] for event in spans)
    assert 0 < last - first < 300e6


def test_program_traced_and_not_traced_answers_the_same(run, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text("import torch\nprint(torch.arange(5, device='npu').sum().item())\n")
    plain = run("python", str(script))
    traced = run("npu-profiler", "trace", "-o", "trace.json", str(script))
    assert plain.stdout == "10\n", plain.stderr
    assert plain.stdout in traced.stdout, traced.stderr


def test_fused_layers_have_the_module_of_the_convolution_cold_and_cached(run, tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "import npu_profiler\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "first = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]\n"
        "model = nn.Sequential(*first, nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)).eval()\n"
        "compiled = torch.compile(model, backend='npu')\n"
        "with torch.no_grad(), npu_profiler.trace(sys.argv[1], layers=True):\n"
        "    compiled(torch.ones(1, 3, 32, 32))\n"
    )
    layers = []
    for name in ("cold.json", "cached.json"):
        done = run("python", str(script), str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        found = [event for event in events if event.get("cat") == "layer"]
        products = [one for one in found if one["args"].get("type") == "Convolution"]
        layers.append([(one["name"], one["args"].get("module")) for one in products])
    cold, cached = layers
    assert [module for _, module in cold] == ["0", "3"]
    assert cached == cold

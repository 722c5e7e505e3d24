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
    # One clock: whatever ran lies between the first and the last moment of the process.
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

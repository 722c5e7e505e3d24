"""Tests that need an NPU: one for each open row of docs/verification/index.md. `nox -s hardware`
runs them. Measurements go into the report as properties; correctness is asserted. `NPU_DEVICE=CPU
nox -s hardware` tries the tests themselves on any machine.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

import npu_compiler
import npu_runtime
from npu_compiler.suite.families.architecture import make
from npu_compiler.suite.table import select
from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.source import find_installed_weights

pytestmark = pytest.mark.hardware

# An NPU computes in float16.
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}
ARCHITECTURES = ("qwen3", "bert", "vit", "resnet", "whisper", "t5", "clip")


@pytest.fixture(autouse=True)
def device(record_property: Callable[[str, object], None]) -> None:
    """Records the serving device in the report."""
    record_property("device", npu_runtime.device_info().full_name)


def least_time_s(work: Callable[[], object], *, repeats: int = 20) -> float:
    """The least time of some calls, each with a synchronization at its end."""
    found = []
    for _ in range(repeats + 3):
        started = time.perf_counter()
        work()
        torch.npu.synchronize()
        found.append(time.perf_counter() - started)
    return min(found[3:])


def test_memory_of_the_pool_is_imported(record_property):
    """A program on the pool's memory against one that must be given a copy, by their times."""
    add = npu_compiler.GraphBuilder(verify="off")
    add.compile(add.parameter((1 << 24,)) + 1)
    own = torch.rand(1 << 24, device="npu")
    other = torch.rand((1 << 24) + 1)[1:]  # 4 bytes behind a page's start
    record_property("pool_s", least_time_s(lambda: add.run(own)))
    record_property("copied_s", least_time_s(lambda: add.run(other)))
    torch.testing.assert_close(add.run(own).cpu(), own.cpu() + 1, **TOLERANCE)
    torch.testing.assert_close(add.run(other).cpu(), other + 1, **TOLERANCE)


def test_streams_run_side_by_side(record_property):
    x = torch.rand(1024, 1024, device="npu") / 32
    streams = [torch.npu.Stream() for _ in range(2)]

    def products(which: list[torch.npu.Stream]) -> list[torch.Tensor]:
        results = []
        for stream in which:
            with torch.npu.stream(stream):
                y = x
                for _ in range(16):
                    y = y @ x
                results.append(y)
        return results

    record_property("one_stream_s", least_time_s(lambda: products([streams[0]] * 2)))
    record_property("two_streams_s", least_time_s(lambda: products(streams)))
    first, second = products(streams)
    torch.npu.synchronize()
    assert torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_compiler_accepts_what_the_rules_accept(name, record_property):
    (architecture,) = select([name])
    with torch.no_grad():
        model, inputs = make(architecture, seed=0)
        said = npu_compiler.explain(model, options={"target": "NPU"}, **inputs)
    refused = [node for node in said.eager if "the device refuses" in node.reason]
    record_property("programs", sum(len(graph.programs) for graph in said.graphs))
    record_property("on the host", len(said.eager))
    assert refused == []


def test_sizes_that_vary_are_served_by_static_programs():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    model = model.eval()
    compiled = torch.compile(model, backend="npu", dynamic=True, options={"target": "NPU"})
    with torch.no_grad():
        for rows in (3, 17, 64, 100):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), model(x), **TOLERANCE)


def test_a_language_model_answers(record_property):
    path = find_installed_weights().path
    model = NPUModelForCausalLM.from_pretrained(path, dtype="float16", pipeline="static")
    given = model.tokenizer("The capital of France is", return_tensors="pt")
    started = time.perf_counter()
    answer = model.generate(**given, max_new_tokens=16, do_sample=False)
    record_property("first_answer_s", time.perf_counter() - started)
    text = model.tokenizer.decode(answer[0])
    record_property("answer", text)
    assert "Paris" in text


def test_half_precision_is_as_the_simulation_says(record_property):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)] * 4
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(8, 256)
    expected = npu_compiler.check_half(model, (x,)).error
    with torch.no_grad():
        found = torch.compile(model, backend="npu", options={"target": "NPU"})(x)
        exact = model(x)
    error = float((found - exact).abs().max() / exact.abs().max())
    record_property("simulated_error", expected)
    record_property("error", error)
    assert error <= 4 * expected + 1e-4


def test_speed_and_what_the_device_tells_of_itself(record_property):
    path = find_installed_weights().path
    for dtype in ("float16", "int8", "int4"):
        model = NPUModelForCausalLM.from_pretrained(path, dtype=dtype, pipeline="static")
        given = model.tokenizer("Once upon a time", return_tensors="pt")
        model.generate(**given, max_new_tokens=4, do_sample=False)
        started = time.perf_counter()
        model.generate(**given, max_new_tokens=64, do_sample=False, eos_token_id=None)
        rate = 64 / (time.perf_counter() - started)
        record_property(f"{dtype}_tokens_per_s", rate)
        assert rate > 0
    for name in ("utilization", "power_draw", "temperature"):
        try:
            reading = getattr(torch.npu, name)()
        except (npu_runtime.NpuError, AttributeError) as why:
            reading = why
        record_property(name, str(reading))


def test_a_process_that_is_killed_does_not_disturb_others(record_property):
    code = (
        "import torch; x = torch.rand(512, 512, device='npu'); print('ready', flush=True)\n"
        "while True: (x @ x).sum().item()"
    )
    x = torch.rand(256, 256)
    expected = x @ x
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "ready\n"
            beside = least_time_s(lambda: (x.to("npu") @ x.to("npu")).cpu(), repeats=5)
            record_property("beside_another_s", beside)
        finally:
            other.kill()
    for _ in range(20):
        torch.testing.assert_close((x.to("npu") @ x.to("npu")).cpu(), expected, **TOLERANCE)

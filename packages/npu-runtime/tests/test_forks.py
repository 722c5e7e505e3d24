"""Children forked after the device was used: each use of npu is an error, and nothing else changes.

Exchange between processes is in test_processes.py. Each case is a separate program, in which a
child that hangs or dies by a signal fails the test.
"""

import os
import sys
import textwrap
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import forked_python

# Its processes are given their driver, and so cover sim in every run.
pytestmark = pytest.mark.driver("openvino", "its processes use both drivers already")

HEADER = """
import os, sys, threading, time, torch
import npu_runtime, npu_runtime.sim

def in_child(work, leaves=LEAVES):
    child = os.fork()
    if child == 0:
        try:
            print(work())
        except Exception as error:
            print(type(error).__name__, "forked-after-use" in str(error))
        sys.stdout.flush()
        if leaves == "at once":
            os._exit(0)
        raise SystemExit(0)
    print(os.waitpid(child, 0)[1])
"""


@pytest.fixture(params=["openvino", pytest.param("sim", marks=pytest.mark.long)])
def run(tmp_path: Path, request):
    """Runs a program on a driver; gives the lines it printed. One that hangs is an error."""

    def run(code: str, *, leaves: str = "after cleaning up") -> list[str]:
        script = tmp_path / "program.py"
        script.write_text(f"LEAVES = {leaves!r}\n" + HEADER + textwrap.dedent(code))
        variables = os.environ | {"NPU_DRIVER": request.param}
        done = forked_python.run([sys.executable, str(script)], env=variables, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


USES = {
    "a new tensor": "torch.ones(2, device='npu')",
    "an empty tensor": "torch.empty(0, device='npu')",
    "an operator": "x + 1",
    "a number": "x[0].item()",
    "a copy to the cpu": "x.cpu()",
    "a copy from the cpu": "torch.ones(2).to('npu')",
    "printing": "str(x)",
    "pinning": "torch.ones(3).pin_memory()",
    "a pinned tensor": "torch.empty(3, pin_memory=True)",
    "a view": "torch.npu.as_cpu(x)",
    "a stream": "torch.npu.Stream()",
    "an event": "torch.npu.Event().record()",
    "waiting": "torch.npu.synchronize()",
    "the accelerator's waiting": "torch.accelerator.synchronize()",
    "waiting for a stream": "torch.npu.current_stream().synchronize()",
    "setting the device": "torch.npu.set_device(0)",
    "the device's context": "torch.npu.device(0).__enter__()",
    "statistics": "torch.npu.memory_allocated()",
    "free memory": "torch.npu.mem_get_info()",
    "emptying the cache": "torch.npu.empty_cache()",
    "properties": "torch.npu.get_device_properties()",
    "the random state": "torch.npu.get_rng_state()",
    "a generator": "torch.Generator('npu')",
    "init": "torch.npu.init()",
    "a backward pass": "(y * 2).sum().backward()",
}


def test_every_use_in_the_child_is_an_error(run):
    lines = run(f"""
        x = torch.ones(2, device="npu")
        y = torch.ones(2, device="npu", requires_grad=True)
        uses = {USES!r}
        for name, use in uses.items():
            print(name)
            in_child(lambda: eval(use), leaves="at once")

        def work():
            errors = set()
            for use in uses.values():
                try:
                    eval(use)
                except Exception as error:
                    errors.add("forked-after-use" in str(error))
            return errors

        in_child(work)
    """)
    *lines, of_all, end = lines
    cases = zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    wrong = [case for case in cases if not case[1].endswith("Error True") or case[2] != "0"]
    assert wrong == []
    assert lines[::3] == list(USES)
    assert (of_all, end) == ("{True}", "0")


FIRST_USES = (
    "kept = torch.ones(3).pin_memory()",
    "kept = torch.empty(3, pin_memory=True)",
    "kept = torch.npu.Stream().native_handle",
    "torch.npu.current_stream().record_event()",
    "torch.npu.memory_allocated()",
)


def test_any_way_to_open_the_device_counts_as_use(run):
    lines = run(f"""
        for use in {FIRST_USES!r}:
            print(use, flush=True)
            parent = os.fork()  # the device was not used yet
            if parent == 0:
                exec(use)
                in_child(lambda: torch.ones(2, device="npu"))
                raise SystemExit(0)
            print(os.waitpid(parent, 0)[1], flush=True)
    """)
    assert lines[::4] == list(FIRST_USES)
    assert all(said.endswith("Error True") for said in lines[1::4]), lines
    assert lines[2::4] == lines[3::4] == ["0"] * len(FIRST_USES)


def test_the_child_uses_the_cpu_as_ever(run):
    lines = run("""
        x = torch.ones(1000, device="npu")
        pinned = torch.arange(4.0).pin_memory()
        copy = (x + 1).cpu()
        view = torch.npu.as_cpu(torch.ones(2, device="npu"))

        def work():
            global x, pinned, copy
            weight = torch.randn(64, 64, requires_grad=True)
            (torch.randn(8, 64) @ weight).sum().backward()
            total = pinned.sum().item() + copy[:3].sum().item() + view.sum().item()
            del x, pinned, copy
            torch.manual_seed(1)
            return total, weight.grad is not None, torch.rand(2).numel()

        in_child(work)
        print((x + 1).sum().item())
    """)
    assert lines == ["(14.0, True, 2)", "0", "2000.0"]


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Lines that load a program, which takes no time on openvino and some on the simulator."""
    x = ops.parameter([64], np.float32, name="x")
    model = ov.Model([ops.add(x, ops.constant(np.float32(1)))], [x], "add_one")
    path = tmp_path / "add_one.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return f"p = npu_runtime.load_program({str(path)!r}, name='p', options={options!r})"


@pytest.mark.parametrize("leaves", ["at once", "after cleaning up"])
def test_a_fork_with_busy_streams_hangs_neither_side(run, program, leaves):
    lines = run(
        f"""
        {program}
        streams = [torch.npu.Stream() for _ in range(3)]
        x = torch.zeros(64, device="npu")
        session = p.session()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            captured = p.run([x])[0]
        with npu_runtime.sim.delay(100_000, 100_000):
            results = []
            for stream in streams:
                with torch.npu.stream(stream):
                    results.append(p.run([x])[0])
            pending = session.run([x])[0]
            graph.replay()

            def work():
                global pending
                errors = []
                for use in (lambda: pending.tolist(), lambda: p.run([x]), lambda: graph.replay(),
                            lambda: session.run([x]), lambda: results[0] + 1):
                    try:
                        use()
                    except RuntimeError as error:
                        errors.append("forked-after-use" in str(error))
                del pending
                return errors

            in_child(work)
        print([r.sum().item() for r in results], pending.sum().item())
    """,
        leaves=leaves,
    )
    assert lines == [str([True] * 5), "0", "[64.0, 64.0, 64.0] 64.0"]


def test_forks_among_threads_that_allocate_and_emit_hang_nobody(run):
    lines = run(
        """
        seen = []
        npu_runtime.observe.add_listener(seen.append)
        is_over = False

        def use():
            while not is_over:
                y = torch.ones(5000, device="npu") + 1
                npu_runtime.observe.instant("test", "mark")

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        x = torch.ones(9000, device="npu")

        def work():
            global x
            with npu_runtime.observe.span("test", "child"):
                x = None
                kept = [torch.ones(n) for n in range(1, 100)]
            npu_runtime.observe.flush()
            return len(kept)

        for _ in range(10):
            in_child(work)
        is_over = True
        for thread in threads:
            thread.join()
    """,
        leaves="at once",
    )
    assert lines == ["99", "0"] * 10


def test_workers_forked_after_use_load_cpu_data(run):
    lines = run("""
        from torch.utils.data import DataLoader, TensorDataset

        base = torch.arange(12.0, device="npu")
        data = TensorDataset(base.cpu(), torch.arange(12).pin_memory())
        loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True,
                            multiprocessing_context="fork")
        for _ in range(2):
            print([(x.to("npu").sum().item(), y.is_pinned()) for x, y in loader])
    """)
    assert lines == [str([(6.0, True), (22.0, True), (38.0, True)])] * 2

"""The simulated device's own promises; each test is a process of its own with NPU_DRIVER=sim."""

import signal

import pytest

SETUP = """
import torch, npu_runtime, numpy as np, openvino as ov
from npu_runtime import sim
from openvino import opset13 as ops
x = ops.parameter([64], np.float32, name="x")
model = ov.Model([ops.add(x, ops.constant(np.float32(1)))], [x], "add_one")
import tempfile, os
path = os.path.join(tempfile.mkdtemp(), "m.xml")
ov.save_model(model, path, compress_to_fp16=False)
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
load = lambda: npu_runtime.load_program(path, name="add_one", options=F32)
"""


def test_host_code_without_a_window_meets_a_protected_page(run_python):
    done = run_python(
        "import torch, ctypes\n"
        "x = torch.ones(5000, device='npu')\nctypes.string_at(x.data_ptr(), 4)",
        NPU_DRIVER="sim",
    )
    assert done.returncode == -signal.SIGSEGV


def test_operators_open_their_windows(run_python):
    done = run_python(
        "import torch\n"
        "x = torch.randn(50, 50, device='npu', requires_grad=True)\n"
        "(x @ x).relu().sum().backward()\n"
        "y = x.detach().t()[1:]; y.mul_(2); y.resize_(3, 3)\n"
        "print(x.grad.shape, y.cpu().shape, x.detach().clone().cpu().sum().isfinite().item())",
        NPU_DRIVER="sim",
    )
    assert done.stdout.split() == ["torch.Size([50,", "50])", "torch.Size([3,", "3])", "True"], (
        done.stderr
    )


@pytest.mark.parametrize(
    "call, trigger",
    [
        ("program_load", "load()"),
        ("program_port_count", "load()"),
        ("program_port", "load()"),
        ("request_create", "good.session()"),
        ("request_bind", "good.run([x])"),
        ("request_run", "good.run([x])[0].cpu()"),
        ("host_access_begin", "x + 1"),
        ("stream_synchronize", "torch.npu.synchronize()"),
        ("stream_create", "good.run([x])"),
        ("event_create", "torch.npu.Event().record()"),
        ("event_record", "torch.npu.Event().record()"),
        ("event_synchronize", "event.synchronize()"),
        ("event_query", "event.query()"),
        ("stream_wait_event", "torch.npu.Stream().wait_event(event)"),
        ("device_properties", "torch.npu.get_device_properties()"),
    ],
)
def test_a_failed_driver_call_is_an_exception_with_its_name(run_python, call, trigger):
    done = run_python(
        SETUP + "x = torch.ones(64, device='npu'); good = load()\n"
        "event = torch.npu.Event(); event.record()\n"
        + (
            "good.run([x]); torch.npu.synchronize()\n"
            if call != "stream_create"
            else "torch.npu.set_stream(torch.npu.Stream())\n"
        )
        + f"planted = sim.failure({call!r}); planted.__enter__()\n"
        f"try:\n    {trigger}\nexcept RuntimeError as error:\n    print('raised', error)\n"
        "print('then', load().run([x])[0].cpu().sum().item())",
        NPU_DRIVER="sim",
    )
    assert "raised" in done.stdout, done.stdout + done.stderr
    assert call in done.stdout
    assert "then 128.0" in done.stdout, done.stdout + done.stderr


def test_a_failed_commit_is_out_of_memory(run_python):
    done = run_python(
        SETUP + "with sim.failure('memory_commit', status=sim.Status.MEMORY, times=100):\n"
        "    try:\n        torch.empty(1 << 22, device='npu')\n"
        "    except torch.OutOfMemoryError as error:\n        print('raised')\n"
        "print(torch.ones(1 << 22, device='npu').sum().item())",
        NPU_DRIVER="sim",
    )
    assert done.stdout.split() == ["raised", "4194304.0"], done.stderr


def test_the_second_try_succeeds_after_the_cache_was_emptied(run_python):
    done = run_python(
        SETUP + "with sim.failure('memory_commit', status=sim.Status.MEMORY, times=1):\n"
        "    print(torch.ones(1 << 22, device='npu').sum().item())\n"
        "print(torch.npu.memory_stats()['num_alloc_retries'])",
        NPU_DRIVER="sim",
    )
    assert done.stdout.split() == ["4194304.0", "1"], done.stderr


def test_an_error_of_enqueued_work_is_raised_once_where_its_result_is_used(run_python):
    done = run_python(
        SETUP + "p = load(); x = torch.ones(64, device='npu')\n"
        "with sim.failure('request_run'):\n"
        "    y = p.run([x])[0]\n"
        "    try:\n        y.sum()\n    except RuntimeError as error:\n        print(error)\n"
        "torch.npu.synchronize(); print('ok')",
        NPU_DRIVER="sim",
    )
    assert "add_one" in done.stdout, done.stderr
    assert "[program-run]" in done.stdout
    assert done.stdout.strip().endswith("ok")


def test_two_simulated_devices_keep_their_tensors_apart(run_python):
    done = run_python(
        "import torch\nprint(torch.npu.device_count())\n"
        "x = torch.ones(3, device='npu:1'); print(x.device, (x + x).device)\n"
        "try:\n    x + torch.ones(3, device='npu:0')\n"
        "except RuntimeError as e:\n    print('raised')\n"
        "print(x.to('npu:0').device)",
        NPU_DRIVER="sim",
        NPU_DEVICE="SIM2",
    )
    assert done.stdout.split() == ["2", "npu:1", "npu:1", "raised", "npu:0"], done.stderr


def test_more_blocks_than_the_system_maps_ranges_is_out_of_memory(run_python):
    done = run_python(
        "import torch\n"
        "kept = []\n"
        "try:\n"
        "    while len(kept) < 200_000: kept.append(torch.empty(64, device='npu'))\n"
        "except torch.OutOfMemoryError:\n    print('raised')\n"
        "kept.clear(); print(torch.ones(3, device='npu').sum().item())",
        NPU_DRIVER="sim",
    )
    assert done.stdout.split() == ["raised", "3.0"], done.stderr

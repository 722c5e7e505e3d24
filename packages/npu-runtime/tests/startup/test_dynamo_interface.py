"""Dynamo learns of npu when it is first imported, and compiles functions on npu tensors."""

import pytest
import torch


def test_importing_dynamo_finds_npu_and_its_interface_answers(run_python):
    done = run_python(
        "import sys, torch\n"
        "print('torch._dynamo' in sys.modules)\n"
        "from torch._dynamo import device_interface\n"
        "from torch._dynamo.device_interface import DeviceGuard, get_interface_for_device\n"
        "npu = get_interface_for_device('npu')\n"
        "print(npu.__name__)\n"
        "print(type(device_interface.__loader__).__name__)\n"
        "waiting = [finder for finder in sys.meta_path\n"
        "           if 'import_hooks' in type(finder).__module__]\n"
        "print(any(device_interface.__name__ == finder.name for finder in waiting))\n"
        "with DeviceGuard(npu, 0):\n"
        "    assert npu.current_device() == npu.Worker.current_device() == 0\n"
        "assert npu.is_available() and npu.device_count() == torch.npu.device_count() > 0\n"
        "assert npu.is_dtype_supported(torch.bfloat16)\n"
        "assert npu.get_raw_stream(0) == npu.current_stream().stream_id\n"
        "assert npu.get_device_properties('npu:0').name == torch.npu.get_device_name()\n"
        "npu.set_device(0); npu.set_stream(npu.current_stream()); npu.synchronize()\n"
        "stream = npu.current_stream()\n"
        "npu._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)\n"
        "assert not npu.is_triton_capable() and npu.get_compute_capability()\n"
        "assert npu.memory_allocated() >= 0\n"
    )
    assert done.stdout.split() == ["False", "NpuInterface", "SourceFileLoader", "False"]
    assert done.returncode == 0, done.stderr


def test_a_dynamo_that_was_there_first_finds_npu(run_python):
    done = run_python(
        "import torch, torch._dynamo.device_interface as interfaces\n"
        "import npu_runtime\n"
        "print(interfaces.get_interface_for_device(torch.device('npu')).__name__)\n",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.split() == ["NpuInterface"], done.stderr


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_runs_forward_and_backward(backend):
    def function(x, weight):
        return torch.nn.functional.gelu(x @ weight).sum(dim=0)

    x = torch.randn(4, 3, device="npu")
    weight = torch.randn(3, 5, device="npu", requires_grad=True)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    result = compiled(x, weight)
    torch.testing.assert_close(result, function(x, weight))
    (gradient,) = torch.autograd.grad(result.sum(), weight)
    (expected,) = torch.autograd.grad(function(x, weight).sum(), weight)
    torch.testing.assert_close(gradient, expected)
    assert gradient.device == torch.device("npu:0")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_follows_modules_autocast_and_dropout(backend):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to("npu")
    compiled = torch.compile(model, backend=backend)
    x = torch.ones(2, 4, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        result = compiled(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected)

def test_importing_torch_is_enough(run_python):
    done = run_python("import torch; print(torch.device('npu'), torch.npu.device_count())")
    assert done.stdout.split() == ["npu", "1"], done.stderr


def test_importing_npu_runtime_first_is_enough(run_python):
    done = run_python(
        "import npu_runtime, torch; print(torch.device('npu'), torch.npu.device_count())"
    )
    assert done.stdout.split() == ["npu", "1"], done.stderr
    assert done.stderr == ""


def test_importing_the_kernels_first_is_enough(run_python):
    done = run_python("import npu_ops, torch; print(torch.ones(2, device='npu').sum().item())")
    assert done.stdout.split() == ["2.0"], done.stderr
    assert done.stderr == ""


def test_autoload_can_be_switched_off_and_done_by_hand(run_python):
    done = run_python(
        "import torch; print(hasattr(torch, 'npu'))\n"
        "import npu_runtime; print(torch.npu.device_count())",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.split() == ["False", "1"], done.stderr


def test_a_broken_runtime_warns_and_torch_still_imports(run_python):
    done = run_python(
        "import sys; sys.modules['npu_runtime'] = None  # importing it now raises\n"
        "import torch; print(torch.ones(2).sum().item())"
    )
    assert done.stdout.split() == ["2.0"], done.stderr
    assert "npu: the device could not be registered: ModuleNotFoundError" in done.stderr
    assert "[autoload]" in done.stderr

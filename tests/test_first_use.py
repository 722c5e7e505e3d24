"""First commands of a newcomer, each in a process without our imports."""

import pytest


def test_import_torch_alone_makes_the_device(run_new):
    code = "import torch; x = torch.randn(4, 4, device='npu'); print((x @ x).sum())"
    done = run_new("python", "-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor(")
    assert "device='npu:0'" in done.stdout


def test_autoload_can_be_switched_off_and_done_by_hand(run_new):
    code = (
        "import sys, torch; assert 'npu_runtime' not in sys.modules;"
        "import npu_ops; print(torch.ones(2, device='npu').cpu())"
    )
    done = run_new("python", "-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert "1., 1." in done.stdout


@pytest.mark.parametrize(
    "module", ["npu_runtime", "npu_ops", "npu_compiler", "npu_llm", "npu_profiler"]
)
def test_importing_a_package_opens_no_device_and_says_nothing(run_new, module):
    code = f"import threading, {module}; print(threading.active_count())"
    done = run_new("python", "-W", "error", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_importing_a_package_loads_no_device_library_and_no_profiler(run_new):
    code = (
        "import sys, npu_llm, npu_ops; from pathlib import Path;"
        "print('libopenvino_intel' in Path('/proc/self/maps').read_text());"
        "print('npu_profiler' in sys.modules)"
    )
    done = run_new("python", "-c", code)
    assert done.stdout == "False\nFalse\n", done.stderr


def test_info_names_the_device_and_the_reason(run_new):
    done = run_new("npu-runtime", "info")
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stdout or "NPU" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_asking_for_the_device_by_name_chooses_it(run):
    code = "import npu_runtime as r; print(r.device_info().device)"
    done = run("python", "-c", code, NPU_DEVICE="CPU")
    assert done.stdout.strip() == "CPU", done.stderr

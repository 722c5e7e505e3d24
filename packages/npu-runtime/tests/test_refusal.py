"""Wrong settings: torch imports, and every use of the device reports the error."""

import pytest

from npu_runtime.refusal import check_environment, refusal


def test_torch_imports_with_a_warning_and_each_use_raises(run_python):
    done = run_python(
        "import torch\n"
        "print(torch.ones(2).sum().item(), torch.npu.is_available(), torch.npu.device_count())\n"
        "import npu_runtime\n"
        "for use in (lambda: torch.ones(2, device='npu'), npu_runtime.device_info,\n"
        "            torch.npu.synchronize, torch.npu.mem_get_info):\n"
        "    try:\n        use()\n    except RuntimeError as error:\n        print(error)\n",
        NPU_SANITIZER="banana",
    )
    first, *others = done.stdout.splitlines()
    assert first == "2.0 False 0", done.stderr
    assert len(others) == 4
    for line in others:
        assert line.startswith("NPU_SANITIZER must be 1 or 0")
        assert line.endswith("[bad-setting]")
    assert "RuntimeWarning: npu: the device will not serve: NPU_SANITIZER" in done.stderr


def test_the_error_in_python_is_an_input_error(run_python):
    done = run_python(
        "import npu_runtime\n"
        "try:\n    npu_runtime.device_info()\n"
        "except npu_runtime.InputError as error:\n    print(error.code)\n",
        is_real=True,
        NPU_ATTACH="2",
    )
    assert done.stdout.split() == ["bad-setting"], done.stderr
    assert "RuntimeWarning" not in done.stderr  # npu_runtime came first, and is asked


def test_the_first_of_two_wrong_settings_is_named(run_python):
    done = run_python(
        "import npu_runtime.refusal as r; print(r.refusal())",
        NPU_SANITIZER="banana",
        NPU_STRICT="banana",
    )
    assert done.stdout.startswith("NPU_SANITIZER"), done.stderr


def test_settings_of_the_kernels_count_too(run_python):
    done = run_python("import torch; torch.ones(2, device='npu')", NPU_STRICT="banana")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("[bad-setting]")
    assert "NPU_STRICT" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["NPU_DEVICE", "NPU_DRIVER"])
def test_a_device_that_was_named_and_is_absent_is_told_before_its_use(run_python, name):
    done = run_python(
        "from npu_runtime import refusal\n"
        "print(refusal.refusal())\n"
        "try:\n    refusal.check_environment()\nexcept RuntimeError as error:\n    print(error)\n",
        **{"NPU_DRIVER": "openvino", "NPU_DEVICE": "CPU", name: "banana"},
    )
    first, second = done.stdout.splitlines()
    assert first == "None"
    assert f"{name}=banana" in second
    assert second.endswith("[device-absent]")


def test_with_right_settings_there_is_nothing_to_say():
    check_environment()
    assert refusal() is None

import tomllib
from pathlib import Path

from npu_runtime_autoload.torch_version import BUILT_FOR

BACKWARD = """
x = torch.ones(8, requires_grad=True, device='npu')
(x * x).sum().backward()
"""


def test_importing_torch_is_enough(run_python, device_count):
    done = run_python(
        f"import torch; print(torch.device('npu'), torch.npu.device_count())\n{BACKWARD}",
        is_real=True,
    )
    assert done.stdout.split() == ["npu", str(device_count)], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_npu_runtime_first_is_enough(run_python, device_count):
    done = run_python(
        "import npu_runtime, torch; print(torch.device('npu'), torch.npu.device_count())",
        is_real=True,
    )
    assert done.stdout.split() == ["npu", str(device_count)], done.stderr
    assert done.stderr == ""


def test_importing_the_kernels_first_is_enough(run_python):
    done = run_python(
        "import npu_ops, torch; print(torch.ones(2, device='npu').sum().item())", is_real=True
    )
    assert done.stdout.split() == ["2.0"], done.stderr
    assert done.stderr == ""


def test_autoload_can_be_switched_off_and_done_by_hand(run_python, device_count):
    done = run_python(
        "import torch; print(hasattr(torch, 'npu'))\n"
        "import npu_runtime; print(torch.npu.device_count())",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.split() == ["False", str(device_count)], done.stderr


def test_a_broken_runtime_warns_and_torch_still_imports(run_python):
    done = run_python(
        "import sys; sys.modules['npu_runtime'] = None  # importing it now raises\n"
        "import torch; print(torch.ones(2).sum().item())",
        is_real=True,
    )
    assert done.stdout.split() == ["2.0"], done.stderr
    assert "npu: the device could not be registered: ModuleNotFoundError" in done.stderr
    assert "[autoload]" in done.stderr


ANOTHER_TORCH = """
import torch, warnings
torch.__version__ = torch.torch_version.TorchVersion("2.14.1+cpu")
import npu_runtime_autoload
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    npu_runtime_autoload.autoload()
    torch.manual_seed(0)  # says nothing of the device
print(len(told), told[0].message)
print(torch.npu.is_available(), torch.npu.device_count(), torch.ones(2).sum().item())
for use in (lambda: torch.ones(2, device="npu"), lambda: torch.ones(2).to("npu"),
            lambda: torch.nn.Linear(2, 2).to("npu"), lambda: torch.npu.synchronize(),
            lambda: __import__("npu_runtime")):
    try:
        use()
    except (RuntimeError, AttributeError, ImportError) as error:
        print(type(error).__name__, str(told[0].message) in str(error))
"""


def test_another_release_of_torch_is_told_with_the_command_that_mends_it(run_python):
    done = run_python(ANOTHER_TORCH, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("1 npu: torch must be 2.13"), done.stderr
    assert "got torch 2.14.1+cpu" in first
    assert 'python -m pip install "torch==2.13.*"' in first
    assert first.endswith("[torch-version]")
    assert second == "False 0 2.0"
    refused = "TorchVersionError True"
    assert rest == [refused, refused, refused, "AttributeError True", refused]


def test_the_release_is_the_one_that_the_wheels_ask_for():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    project = tomllib.loads(text)
    assert f"torch=={BUILT_FOR}.*" in project["build-system"]["requires"]
    asked = [one for one in project["project"]["dependencies"] if one.startswith("torch>=")]
    assert asked[0].startswith(f"torch>={BUILT_FOR},")


def test_a_program_that_ends_right_after_a_backward_pass_ends_well(run_python):
    # torch's thread may still release Python objects then.
    for _ in range(3):
        done = run_python(f"import torch\n{BACKWARD}")
        assert done.returncode == 0, done.stderr


def test_a_program_may_still_run_backward_passes_while_it_ends(run_python):
    done = run_python(
        "import atexit, torch\n"
        "def last():\n"
        "    x = torch.ones(8, requires_grad=True, device='npu')\n"
        "    (x * x).sum().backward()\n"
        "    print(x.grad.sum().item())\n"
        "last()\n"
        "atexit.register(last)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16.0", "16.0"]


def test_a_forked_child_ends_without_waiting_for_the_parents_threads(run_python):
    done = run_python(
        f"import os, sys, time, torch\n{BACKWARD}"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(0)\n"
        "start = time.monotonic()\n"
        "os.waitpid(pid, 0)\n"
        "print(time.monotonic() - start < 5)"
    )
    assert done.stdout.split() == ["True"], done.stderr

"""Drivers, kernels, code for Inductor and observers of other wheels, whole and broken."""

import importlib.metadata
import types
from pathlib import Path

import pytest
import torch
from torch._dynamo.device_interface import get_interface_for_device

from npu_runtime import DeviceError, InputError, plugins
from npu_runtime.driver_conformance.locate import find_driver

SCANS = """
import importlib.metadata
real, groups = importlib.metadata.entry_points, []
def counted(**arguments):
    groups.append(arguments.get("group"))
    return real(**arguments)
importlib.metadata.entry_points = counted
import torch
print(groups.count("npu_runtime.drivers"))
print(torch.ones(3, device="npu").sum().item())
print(groups.count("npu_runtime.drivers"))
"""


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """An unpacked wheel with an entry point for a driver that raises."""
    (tmp_path / "lost_vendor.py").write_text("def library():\n    raise OSError('no chip here')\n")
    info = tmp_path / "lost_vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lost-vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[npu_runtime.drivers]\nlost = lost_vendor:library\n")
    return tmp_path


def installed(vendor: Path) -> str:
    """Code that puts a wheel on the path."""
    return f"import sys; sys.path.append({str(vendor)!r})\n"


@pytest.mark.parametrize(
    "driver, at_first_use", [("", "1"), ("openvino", "0"), ("sim", "0")], ids=["any", "ov", "sim"]
)
def test_drivers_are_looked_for_when_a_device_is_opened(run_python, driver, at_first_use):
    done = run_python(SCANS, NPU_DRIVER=driver)
    assert done.stdout.split() == ["0", "3.0", at_first_use], done.stderr


def test_a_wheel_that_fails_is_warned_of_and_another_driver_serves(run_python, vendor):
    done = run_python(
        installed(vendor) + "import torch, npu_runtime; print(npu_runtime.device_info().driver)",
        NPU_DRIVER="",
    )
    assert done.stdout.strip() == "openvino", done.stderr
    assert "lost: OSError: no chip here; the driver openvino serves instead" in done.stderr


def test_a_library_that_is_not_there_is_named(run_python, tmp_path):
    done = run_python(
        "import torch; torch.ones(1, device='npu')",
        NPU_DRIVER="openvino",
        NPU_OPENVINO_LIBRARY=str(tmp_path / "libnone.so"),
    )
    assert "no device can serve" in done.stderr
    assert "libnone.so" in done.stderr


def test_a_driver_that_no_wheel_has_is_an_error():
    with pytest.raises(InputError, match=r"openvino.*'nobody'") as caught:
        find_driver("nobody")
    assert caught.value.code == "driver-unknown"


def test_the_error_of_a_failed_driver_call_carries_the_code(run_python):
    code = (
        "import torch, npu_runtime\n"
        "from npu_runtime import sim\n"
        "torch.ones(1, device='npu').cpu()\n"
        "event = torch.npu.Event(enable_timing=True); event.record(); event.synchronize()\n"
        "try:\n"
        "    with sim.failure('event_time_ns'): event.elapsed_time(event)\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = run_python(code, NPU_DRIVER="sim")
    assert done.stdout.rstrip().endswith("[driver-call]"), done.stdout + done.stderr


def test_kernels_that_are_not_installed_are_an_error(monkeypatch):
    monkeypatch.setattr(plugins, "_KERNEL_PACKAGE", "npu_ops_that_nobody_has")
    with pytest.raises(DeviceError, match="pip install dist/npu_ops-") as caught:
        plugins.kernel_package()
    assert caught.value.code == "kernels-absent"


def test_a_wheel_that_fails_and_was_asked_for_says_why(run_python, vendor):
    done = run_python(
        installed(vendor) + "import torch, npu_runtime\n"
        "try:\n    npu_runtime.device_info()\n"
        "except npu_runtime.DeviceError as error:\n    print(error)",
        NPU_DRIVER="lost",
    )
    assert "lost: OSError: no chip here" in done.stdout, done.stderr
    assert "[device-absent]" in done.stdout
    assert done.stderr == ""


def test_the_conformance_test_says_why_such_a_wheel_cannot_be_tested(run_python, vendor):
    done = run_python(
        installed(vendor) + "from npu_runtime.driver_conformance.__main__ import main\n"
        "sys.exit(main(['--driver', 'lost']))",
    )
    assert done.returncode == 2
    assert "OSError: no chip here" in done.stderr
    assert done.stderr.strip().endswith("[driver-locate]")


def test_an_unknown_driver_is_told_with_the_installed_ones(run_python, vendor):
    done = run_python(
        installed(vendor) + "import torch, npu_runtime\n"
        "try:\n    npu_runtime.device_info()\n"
        "except npu_runtime.DeviceError as error:\n    print(error)",
        NPU_DRIVER="nope",
    )
    assert "but the installed drivers are openvino, sim, lost" in done.stdout, done.stderr


class Offer:
    """An entry point of a wheel with one class."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __lt__(self, other: "Offer") -> bool:
        return self.value < other.value

    def load(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(Scheduling=int)


def offers(monkeypatch: pytest.MonkeyPatch, *wheels: str) -> None:
    def found(*, group: str) -> list[Offer]:
        assert group == "npu_runtime.inductor"
        return [Offer(wheel) for wheel in wheels]

    monkeypatch.setattr(importlib.metadata, "entry_points", found)


def test_class_of_an_installed_wheel_is_found(monkeypatch):
    offers(monkeypatch, "a_wheel.inductor")
    assert torch.npu.Scheduling is int


def test_without_a_wheel_the_name_is_not_there(monkeypatch):
    offers(monkeypatch)
    assert not hasattr(torch.npu, "Scheduling")


def test_name_that_the_wheel_lacks_is_not_there(monkeypatch):
    offers(monkeypatch, "a_wheel.inductor")
    assert not hasattr(torch.npu, "CppWrapperCodegen")


def test_two_wheels_are_an_error_that_names_both(monkeypatch):
    offers(monkeypatch, "one.inductor", "another.inductor")
    with pytest.raises(InputError, match=r"another.inductor, one.inductor.*\[inductor-wheels\]"):
        torch.npu.Scheduling  # noqa: B018  # asking raises


def test_properties_say_how_many_threads_run_loops():
    properties = get_interface_for_device("npu").get_device_properties("npu:0")
    assert properties.multi_processor_count == torch.get_num_threads()
    assert properties.name == torch.npu.get_device_name()


class Entry:
    def __init__(self, function):
        self.name = self.value = "test"
        self.load = lambda: function


@pytest.fixture
def install_observers(monkeypatch):
    def run(*functions):
        entries = [Entry(function) for function in functions]
        monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: entries)
        plugins.install_observers()

    return run


def test_each_observer_is_called(install_observers):
    called = []
    install_observers(lambda: called.append(1), lambda: called.append(2))
    assert called == [1, 2]


def test_an_observer_that_fails_is_a_warning_and_the_next_is_called(install_observers):
    def fail():
        raise OSError("no")

    called = []
    with pytest.warns(RuntimeWarning, match=r"OSError: no.*\[observer\]"):
        install_observers(fail, lambda: called.append(1))
    assert called == [1]

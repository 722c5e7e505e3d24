"""The device that would serve, queried without torch: equal to opening it."""

import json
from dataclasses import replace

import pytest

from npu_runtime import info
from npu_runtime.info import architecture_of, serving_device
from npu_runtime.plugins import openvino_library

pytestmark = pytest.mark.driver("openvino", "it asks OpenVINO")

# The result of device_info before the packages' code has run, and whether it runs for that.
ASK = """
import dataclasses, json, sys
from npu_command.import_hooks import deferred_starts
def ask(device_info):
    try:
        return dataclasses.asdict(device_info({index}))
    except (ValueError, RuntimeError) as error:
        return [type(error).__name__, error.code, str(error)]
with deferred_starts():
    from npu_runtime.info import device_info
    said = ask(device_info)
    needs_packages = "npu_runtime._C" in sys.modules
"""
SAY_HOW = ASK + "print(json.dumps(['torch' in sys.modules, said['device']]))\n"
# And the later result, in a process with torch but without npu's packages.
COMPARE = (
    ASK
    + "import npu_runtime\nprint(json.dumps([said, needs_packages, ask(npu_runtime.device_info)]))"
)
BARE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.parametrize("wanted", ["", "CPU"])
def test_it_is_what_the_driver_opens(wanted, run_python):
    code = "import json\nfrom npu_runtime import _C\nprint(json.dumps(_C.device_properties(0)))"
    opened = json.loads(run_python(code, NPU_DRIVER="openvino", NPU_DEVICE=wanted).stdout)
    found = serving_device(openvino_library(), wanted)
    assert found is not None
    assert {name: opened[name] for name in found} == found


@pytest.mark.parametrize("wanted", ["NPU.7", "cpu", "CP", "banana"])
def test_a_device_that_is_not_there_is_none(wanted):
    assert serving_device(openvino_library(), wanted) is None


@pytest.mark.parametrize("library", ["", "/no/such/library.so", "libm.so.6"])
def test_without_openvinos_library_there_is_none(library):
    assert serving_device(library, "") is None


def test_device_info_says_the_same_without_torch(run_python):
    settings = {"NPU_DRIVER": "openvino"}
    done = run_python(SAY_HOW.format(index=0), is_real=True, **settings)
    assert json.loads(done.stdout) == [False, serving_device(openvino_library(), "")["device"]]
    said, needs_packages, real = json.loads(
        run_python(COMPARE.format(index=0), **BARE, **settings).stdout
    )
    assert not needs_packages
    assert said == real


@pytest.mark.parametrize(
    "index, settings",
    [
        (1, {"NPU_DRIVER": "sim", "NPU_DEVICE": "SIM2"}),
        (0, {"NPU_DEVICE": "NPU.7"}),
        (7, {}),
        (0, {"NPU_OPENVINO_LIBRARY": "/no/such/library.so"}),
        (0, {"NPU_SANITIZER": "banana"}),
    ],
    ids=str,
)
def test_what_openvino_does_not_tell_is_told_by_the_driver(index, settings, run_python):
    settings = {"NPU_DRIVER": "openvino", **settings}
    done = run_python(COMPARE.format(index=index), **BARE, **settings)
    said, needs_packages, real = json.loads(done.stdout)
    assert needs_packages
    assert said == real


def test_a_vendors_driver_is_asked_where_one_is_installed(run_python, tmp_path):
    wheel = tmp_path / "vendor-1.0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (wheel / "entry_points.txt").write_text("[npu_runtime.drivers]\nvendor = no_vendor:library\n")
    installed = f"import sys\nsys.path.append({str(tmp_path)!r})\n"
    for driver, needed in (("", True), ("openvino", False)):
        code = installed + COMPARE.format(index=0)
        said, needs_packages, real = json.loads(run_python(code, **BARE, NPU_DRIVER=driver).stdout)
        assert needs_packages == needed
        assert said == real


def test_another_torch_than_the_native_code_is_built_for_is_not_passed_over(run_python):
    code = "import importlib.metadata as m\nm.version = lambda name: '2.14.0'\n"
    _, needs_packages, _ = json.loads(run_python(code + COMPARE.format(index=0), **BARE).stdout)
    assert needs_packages


def test_a_device_that_is_not_there_has_no_architecture():
    assert architecture_of(openvino_library(), "GPU.7") == ""


def test_only_an_npu_has_a_generation(monkeypatch):
    serving = info.device_info()
    found = info.npu_architecture.__wrapped__()
    assert found == ("4000" if serving.device == "NPU" else "")  # that of tools/npu_stub
    monkeypatch.setattr(info, "device_info", lambda: replace(serving, device="NPU"))
    monkeypatch.setattr(info, "architecture_of", lambda library, device: f"4000 of {device}")
    assert info.npu_architecture.__wrapped__() == "4000 of NPU"

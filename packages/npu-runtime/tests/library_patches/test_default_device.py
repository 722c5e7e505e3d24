"""The default device of programs that name none: the settings that decide, and their order."""

import logging

import pytest

from npu_runtime.config import RuntimeConfig
from npu_runtime.info import DeviceInfo
from npu_runtime.library_patches import default_device
from npu_runtime.library_patches.default_device import decide


def device(driver, name):
    return DeviceInfo("npu:0", driver, name, "product", "1", (), 0, "a reason of the driver")


def test_an_npu_is_taken():
    chosen = decide(RuntimeConfig(), is_in_use=False, serving=lambda: device("openvino", "NPU"))
    assert chosen.is_npu
    assert chosen.reason == "a reason of the driver"


def test_a_vendors_device_is_taken():
    assert decide(RuntimeConfig(), is_in_use=False, serving=lambda: device("acme", "CPU7")).is_npu


def test_the_cpu_plugin_is_not_taken_and_what_would_take_it_is_said():
    chosen = decide(RuntimeConfig(), is_in_use=False, serving=lambda: device("openvino", "CPU"))
    assert not chosen.is_npu
    assert chosen.reason == "a reason of the driver; NPU_AUTO=1 chooses npu"


def test_without_a_device_npu_is_not_taken():
    chosen = decide(RuntimeConfig(), is_in_use=False, serving=lambda: None)
    assert not chosen.is_npu
    assert chosen.reason == "no device can serve as npu"


def unopened():
    raise AssertionError("the driver was opened")


@pytest.mark.parametrize(
    "settings, is_in_use, is_npu, reason",
    [
        (RuntimeConfig(auto=True), False, True, "NPU_AUTO=1 requests it"),
        (RuntimeConfig(device="CPU"), False, True, "NPU_DEVICE=CPU requests it"),
        (RuntimeConfig(driver="sim"), False, True, "NPU_DRIVER=sim requests it"),
        (RuntimeConfig(), True, True, "this process uses it already"),
        (RuntimeConfig(auto=False, device="NPU"), False, False, "NPU_AUTO=0 leaves npu out"),
        (RuntimeConfig(auto=False), True, True, "this process uses it already"),
    ],
)
def test_what_was_asked_for_decides_and_opens_no_driver(settings, is_in_use, is_npu, reason):
    chosen = decide(settings, is_in_use=is_in_use, serving=unopened)
    assert (chosen.is_npu, chosen.reason) == (is_npu, reason)


def test_the_device_that_transformers_tests_are_given_is_named():
    auto_off = RuntimeConfig(auto=False)
    chosen = decide(auto_off, is_in_use=False, serving=unopened, tested="npu:0")
    assert (chosen.is_npu, chosen.reason) == (True, "TRANSFORMERS_TEST_DEVICE=npu:0 names it")
    assert not decide(auto_off, is_in_use=False, serving=unopened, tested="cpu").is_npu


def test_one_line_says_what_is_taken_and_why(monkeypatch, caplog):
    monkeypatch.setattr(default_device, "_said", set())
    monkeypatch.setattr(default_device, "config", RuntimeConfig(auto=True))
    with caplog.at_level(logging.WARNING):
        assert default_device.picks_npu()
        assert default_device.picks_npu()
    assert caplog.messages == [
        "npu: Hugging Face's libraries run on npu where no device is named: NPU_AUTO=1 requests it"
    ]

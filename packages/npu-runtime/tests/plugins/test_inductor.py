"""Where torch.npu finds what Inductor asks for."""

import importlib.metadata
import types

import pytest
import torch
from torch._dynamo.device_interface import get_interface_for_device

from npu_runtime.errors import InputError


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

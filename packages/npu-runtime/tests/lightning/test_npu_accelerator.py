"""The accelerator without Lightning: how many processes, on which devices."""

import abc
import pickle

import pytest
import torch

from npu_runtime import InputError
from npu_runtime.lightning.npu_accelerator import NpuAccelerator, make_accelerator


@pytest.mark.parametrize(
    "devices, indices",
    [(1, [0]), (-1, [0]), ("1", [0]), ("-1", [0]), ([0], [0]), ("0,0", [0, 0]), ("0,", [0])],
)
def test_devices_are_read_as_lightning_writes_them(devices, indices):
    if torch.npu.device_count() > 1 and devices in (-1, "-1"):
        indices = list(range(torch.npu.device_count()))
    assert NpuAccelerator.parse_devices(devices) == indices


def test_more_processes_than_devices_share_them():
    count = torch.npu.device_count()
    parsed = NpuAccelerator.parse_devices(count + 1)
    assert parsed == [*range(count), 0]
    assert NpuAccelerator.get_parallel_devices(parsed)[-1] == torch.device("npu", 0)


@pytest.mark.parametrize("devices", [0, -2, "", "all", [99], [-1], [], ["0"], True, 1.5, None])
def test_what_is_neither_a_number_nor_indices_is_refused(devices):
    with pytest.raises(InputError) as caught:
        NpuAccelerator.parse_devices(devices)
    assert caught.value.code == "lightning-devices"
    assert repr(devices) in str(caught.value)


class Base:
    """Stands for a class of Lightning's that another process imports."""


def test_it_is_sent_to_a_process_that_a_strategy_spawns():
    sent = pickle.loads(pickle.dumps(make_accelerator(Base)()))
    assert isinstance(sent, NpuAccelerator)
    assert isinstance(sent, Base)


def test_it_is_whole_with_a_base_class_of_lightnings_kind():
    class Accelerator(abc.ABC):
        @abc.abstractmethod
        def setup_device(self, device): ...

        @staticmethod
        @abc.abstractmethod
        def is_available(): ...

    made = make_accelerator(Accelerator)
    assert issubclass(made, Accelerator)
    assert issubclass(made, NpuAccelerator)
    made().setup_device(torch.device("npu", 0))
    assert made.is_available()
    assert (made.name(), made.auto_device_count()) == ("npu", torch.npu.device_count())
    assert "allocated_bytes.all.current" in made().get_device_stats(torch.device("npu", 0))

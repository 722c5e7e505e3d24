"""Results of Lightning's connector for its arguments, with fakes of its modules."""

import abc
import pickle
import types

import pytest
import torch

from npu_runtime import InputError
from npu_runtime.library_patches.lightning import CHANGES, NpuAccelerator, make_accelerator


class SingleDeviceStrategy:
    def __init__(self, device):
        self.device = device


class ModelParallelStrategy:
    pass


class MixedPrecision:
    def __init__(self, precision, device):
        self.precision, self.device = precision, device


@pytest.fixture
def connector():
    """Fabric's connector, which supports the CPU, and CUDA for mixed precision."""

    class _Connector:
        _parallel_devices = (torch.device("npu", 0),)
        accelerator, strategy = NpuAccelerator(), None
        _precision_input, _precision_instance = "32-true", None

        @staticmethod
        def _choose_auto_accelerator():
            return "cpu"

        def _choose_strategy(self):
            return SingleDeviceStrategy("cpu")

        def _check_and_init_precision(self):
            return MixedPrecision(self._precision_input, "cuda")

    module = types.ModuleType("connector")
    vars(module).update(
        _Connector=_Connector,
        SingleDeviceStrategy=SingleDeviceStrategy,
        ModelParallelStrategy=ModelParallelStrategy,
        MixedPrecision=MixedPrecision,
    )
    CHANGES["lightning"]["lightning.fabric.connector"](module)
    return _Connector()


def test_one_device_is_npus_and_not_the_cpus(connector):
    assert connector._choose_strategy().device == torch.device("npu", 0)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_autocast_is_npus(connector, precision):
    connector._precision_input = precision
    made = connector._check_and_init_precision()
    assert (made.precision, made.device) == (precision, "npu")


@pytest.mark.parametrize(
    "name, value",
    [
        ("accelerator", object()),
        ("strategy", ModelParallelStrategy()),
        ("_precision_instance", MixedPrecision("16-mixed", "cpu")),
        ("_precision_input", "32-true"),
    ],
)
def test_what_is_not_ours_stays_as_it_is(connector, name, value):
    connector._precision_input = "16-mixed"
    setattr(connector, name, value)
    assert connector._check_and_init_precision().device == "cuda"


def test_another_accelerator_keeps_its_strategy(connector):
    connector.accelerator = object()
    assert connector._choose_strategy().device == "cpu"


def test_ddp_is_given_no_index_on_npu():
    class DDPStrategy:
        root_device = torch.device("npu", 0)

        def _determine_ddp_device_ids(self):
            return [self.root_device.index]

    module = types.ModuleType("ddp")
    module.DDPStrategy = DDPStrategy
    CHANGES["lightning"]["lightning.fabric.strategies.ddp"](module)
    strategy = DDPStrategy()
    assert strategy._determine_ddp_device_ids() is None
    strategy.root_device = torch.device("cuda", 1)
    assert strategy._determine_ddp_device_ids() == [1]


def test_a_registry_gets_npu_once_and_keeps_anothers():
    class Registry(dict):
        def register(self, name, accelerator, description):
            self[name] = accelerator

    class Accelerator:
        pass

    module = types.ModuleType("accelerators")
    module.Accelerator, module.AcceleratorRegistry = Accelerator, Registry()
    register = CHANGES["lightning"]["lightning.pytorch.accelerators"]
    register(module)
    assert issubclass(module.AcceleratorRegistry["npu"], Accelerator)
    module.AcceleratorRegistry = Registry(npu="another package's")
    register(module)
    assert module.AcceleratorRegistry["npu"] == "another package's"


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

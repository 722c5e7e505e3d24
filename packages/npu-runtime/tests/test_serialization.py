"""Saving and loading npu tensors: torch's formats, safetensors, pickle and copies."""

import copy
import io
import pickle
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize

FORMATS = {
    "zip": {"_use_new_zipfile_serialization": True},
    "legacy": {"_use_new_zipfile_serialization": False},
}
formats = parametrize("form", sorted(FORMATS))


def round_trip(value, form="zip", **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **FORMATS[form])
    buffer.seek(0)
    return torch.load(buffer, **options)


class TestSerialization(TestCase):
    @formats
    @parametrize("weights_only", [True, False])
    def test_a_tensor_comes_back_to_its_device(self, device, form, weights_only):
        tensor = torch.arange(12.0, device=device).reshape(3, 4)
        loaded = round_trip(tensor, form, weights_only=weights_only)
        self.assertEqual(loaded.device, tensor.device)
        self.assertEqual(loaded, tensor)

    @formats
    @dtypes(torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.complex64)
    def test_every_dtype_keeps_its_bytes(self, device, form, dtype):
        tensor = torch.arange(9, device=device).to(dtype)
        self.assertEqual(round_trip(tensor, form), tensor, rtol=0, atol=0)

    @formats
    @parametrize("target", ["cpu", torch.device("cpu"), {"npu:0": "cpu"}, "function"])
    def test_map_location_takes_it_to_the_cpu(self, device, form, target):
        tensor = torch.randn(5, device=device)
        place = (lambda storage, location: storage.cpu()) if target == "function" else target
        loaded = round_trip(tensor, form, map_location=place)
        self.assertEqual(loaded.device.type, "cpu")
        self.assertEqual(loaded, tensor.cpu())

    @formats
    @parametrize("target", ["npu", "npu:0", torch.device("npu"), {"cpu": "npu"}, "function"])
    def test_map_location_takes_a_cpu_tensor_to_the_device(self, device, form, target):
        tensor = torch.randn(5)
        place = (
            (lambda storage, location: storage.to(device="npu")) if target == "function" else target
        )
        loaded = round_trip(tensor, form, map_location=place)
        self.assertEqual(loaded.device, torch.device("npu:0"))
        self.assertEqual(loaded.cpu(), tensor)

    @parametrize("saved_on", ["cpu", "npu"])
    @parametrize("place", ["cpu", "npu"])
    def test_a_mapped_file_loads_to_either_device(self, device, saved_on, place):
        tensor = torch.randn(1000, device=saved_on)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tensor.pt")
            torch.save(tensor, path)
            loaded = torch.load(path, mmap=True, map_location=place)
            self.assertEqual(loaded.device.type, place)
            self.assertEqual(loaded.cpu(), tensor.cpu())

    def test_a_mapped_file_comes_back_to_its_device(self, device):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tensor.pt")
            torch.save(torch.ones(10, device=device), path)
            self.assertEqual(torch.load(path, mmap=True).device, torch.device(device))

    def test_a_default_device_moves_nothing_that_is_loaded(self, device):
        with torch.device(device):
            loaded = round_trip(torch.ones(2, device="cpu"))
        self.assertEqual(loaded.device.type, "cpu")

    @formats
    def test_tensors_that_share_memory_still_do(self, device, form):
        base = torch.arange(10, device=device)
        loaded, view = round_trip([base, base[3:6]], form)
        view[0] = 99
        self.assertEqual(loaded[3].item(), 99)

    @formats
    def test_strides_and_offsets_stay(self, device, form):
        tensor = torch.arange(24, device=device).reshape(4, 6).t()[1:, ::2]
        loaded = round_trip(tensor, form)
        self.assertEqual(loaded.stride(), tensor.stride())
        self.assertEqual(loaded.storage_offset(), tensor.storage_offset())
        self.assertEqual(loaded, tensor)

    @formats
    def test_a_state_dict_of_model_and_optimizer(self, device, form):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(6, 4, device=device)).sum().backward()
        optimizer.step()
        loaded = round_trip({"model": model.state_dict(), "opt": optimizer.state_dict()}, form)
        twin = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        twin.load_state_dict(loaded["model"])
        self.assertEqual(next(twin.parameters()).device.type, "cpu")
        for name, value in model.state_dict().items():
            self.assertEqual(loaded["model"][name].device, value.device, msg=name)
            self.assertEqual(twin.state_dict()[name], value.cpu(), msg=name)
        self.assertEqual(loaded["opt"]["state"][0]["exp_avg"].device, torch.device(device))

    def test_assigning_a_state_dict_moves_a_meta_model_to_the_device(self, device):
        source = torch.nn.Linear(3, 2).to(device)
        with torch.device("meta"):
            model = torch.nn.Linear(3, 2)
        model.load_state_dict(round_trip(source.state_dict()), assign=True)
        self.assertEqual(model.weight.device, torch.device(device))
        self.assertEqual(model.weight, source.weight)

    @formats
    def test_a_parameter_keeps_requires_grad(self, device, form):
        for requires_grad in (True, False):
            parameter = torch.nn.Parameter(torch.ones(2, device=device), requires_grad)
            loaded = round_trip(parameter, form)
            self.assertIsInstance(loaded, torch.nn.Parameter)
            self.assertEqual(loaded.requires_grad, requires_grad)

    @formats
    def test_a_whole_module(self, device, form):
        model = torch.nn.Linear(3, 2).to(device)
        loaded = round_trip(model, form, weights_only=False)
        self.assertEqual(loaded.weight, model.weight)
        self.assertEqual(loaded.weight.device, torch.device(device))

    def test_a_storage(self, device):
        storage = torch.arange(8, dtype=torch.uint8, device=device).untyped_storage()
        loaded = round_trip(storage)._untyped_storage  # torch gives a typed one back
        self.assertEqual(loaded.device.type, "npu")
        self.assertEqual(loaded.tolist(), list(range(8)))

    def test_a_checkpoint_for_a_device_that_is_not_there_says_so(self, device):
        buffer = io.BytesIO()
        torch.save(torch.ones(2), buffer)
        for place, said in (("npu:7", "device_count"), ("cuda", "CUDA")):
            buffer.seek(0)
            with self.assertRaisesRegex(RuntimeError, said):
                torch.load(buffer, map_location=place)

    def test_nothing_is_read_under_skip_data(self, device):
        with torch.serialization.skip_data():
            buffer = io.BytesIO()
            torch.save(torch.ones(100, device=device), buffer)
        buffer.seek(0)
        self.assertEqual(torch.load(buffer).device, torch.device(device))

    @parametrize("place", ["npu", "npu:0"])
    def test_safetensors_loads_straight_to_the_device(self, device, place):
        tensors = {
            "weight": torch.randn(4, 5, device=device),
            "half": torch.randn(7, device=device).to(torch.bfloat16),
            "scalar": torch.tensor(3, device=device),
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tensors.safetensors")
            save_file(tensors, path)
            loaded = load_file(path, device=place)
            on_cpu = load_file(path)
        for name, value in tensors.items():
            self.assertEqual(loaded[name].device, torch.device("npu:0"))
            self.assertEqual(loaded[name], value, rtol=0, atol=0)
            self.assertEqual(on_cpu[name].device.type, "cpu")

    def test_safetensors_opens_lazily_and_slices_on_the_device(self, device):
        tensor = torch.randn(6, 3, device=device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tensors.safetensors")
            save_file({"x": tensor}, path)
            with safe_open(path, framework="pt", device="npu") as file:
                whole, part = file.get_tensor("x"), file.get_slice("x")[2:4, :2]
        self.assertEqual(whole, tensor)
        self.assertEqual(part.device, torch.device("npu:0"))
        self.assertEqual(part, tensor[2:4, :2])


class TestCopies(TestCase):
    @parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle_keeps_the_device(self, device, protocol):
        tensor = torch.randn(3, device=device)
        loaded = pickle.loads(pickle.dumps(tensor, protocol))
        self.assertEqual(loaded, tensor)
        self.assertEqual(loaded.device, tensor.device)
        self.assertNotEqual(loaded.data_ptr(), tensor.data_ptr())

    def test_a_deep_copy_has_memory_of_its_own_and_keeps_sharing(self, device):
        base = torch.arange(6, device=device)
        twin, view = copy.deepcopy((base, base[2:]))
        self.assertNotEqual(twin.data_ptr(), base.data_ptr())
        view[0] = 50
        self.assertEqual(twin[2].item(), 50)
        self.assertEqual(base[2].item(), 2)

    def test_a_deep_copy_of_a_module(self, device):
        model = torch.nn.LSTM(3, 4).to(device)
        twin = copy.deepcopy(model)
        self.assertEqual(twin.state_dict(), model.state_dict())
        self.assertIsInstance(twin.weight_hh_l0, torch.nn.Parameter)
        self.assertEqual(twin.weight_hh_l0.device, torch.device(device))

    def test_a_deep_copy_of_what_autograd_computed_is_refused(self, device):
        leaf = torch.ones(2, device=device, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "graph leaves"):
            copy.deepcopy(leaf * 2)

    def test_a_shallow_copy_shares_memory(self, device):
        tensor = torch.ones(2, device=device)
        twin = copy.copy(tensor)
        twin[0] = 7
        self.assertEqual(tensor[0].item(), 7)

    def test_storages_copy(self, device):
        storage = torch.arange(4, dtype=torch.uint8, device=device).untyped_storage()
        for made in (copy.copy(storage), copy.deepcopy(storage), storage.clone()):
            self.assertEqual(made.device, storage.device)
            self.assertEqual(made.tolist(), [0, 1, 2, 3])
            self.assertNotEqual(made.data_ptr(), storage.data_ptr())


instantiate_device_type_tests(TestSerialization, globals(), only_for="npu")
instantiate_device_type_tests(TestCopies, globals(), only_for="npu")

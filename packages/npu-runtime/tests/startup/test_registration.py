"""DLPack and other libraries' arrays."""

import numpy as np
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils.dlpack import DLDeviceType, from_dlpack, to_dlpack


class TestDlpack(TestCase):
    @dtypes(torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    @parametrize("by", ["capsule", "tensor"])
    def test_a_tensor_comes_back_over_the_same_memory(self, device, dtype, by):
        tensor = torch.arange(6, device=device).to(dtype).reshape(2, 3)
        twin = from_dlpack(to_dlpack(tensor) if by == "capsule" else tensor)
        self.assertEqual(twin, tensor)
        self.assertEqual(twin.device, tensor.device)
        self.assertEqual(twin.data_ptr(), tensor.data_ptr())

    def test_strides_and_offsets_stay(self, device):
        tensor = torch.arange(24.0, device=device).reshape(4, 6)[1:, ::2]
        twin = torch.from_dlpack(tensor)
        self.assertEqual(twin.stride(), tensor.stride())
        self.assertEqual(twin, tensor)

    def test_the_memory_outlives_the_first_tensor(self, device):
        twin = torch.from_dlpack(torch.full((1000,), 3.0, device=device))
        filler = [torch.zeros(1000, device=device) for _ in range(5)]
        self.assertEqual(twin.sum().item(), 3000)
        self.assertEqual(len(filler), 5)

    def test_the_device_is_dlpacks_extension_device(self, device):
        self.assertEqual(
            torch.ones(1, device=device).__dlpack_device__(), (DLDeviceType.kDLExtDev, 0)
        )

    def test_other_tensors_keep_their_device(self, device):
        self.assertEqual(torch.ones(1).__dlpack_device__(), (DLDeviceType.kDLCPU, 0))
        self.assertEqual(torch.ones(1).pin_memory().__dlpack_device__(), (DLDeviceType.kDLCPU, 0))

    def test_a_copy_and_another_device_can_be_asked_for(self, device):
        tensor = torch.arange(3, device=device)
        copied = torch.from_dlpack(tensor, copy=True)
        self.assertNotEqual(copied.data_ptr(), tensor.data_ptr())
        self.assertEqual(torch.from_dlpack(tensor, device="cpu").device.type, "cpu")
        self.assertEqual(
            torch.from_dlpack(np.arange(3), device=device).device, torch.device(device)
        )
        with self.assertRaisesRegex(ValueError, "without copying"):
            torch.from_dlpack(tensor, device="cpu", copy=False)

    def test_gradients_cannot_be_exported(self, device):
        with self.assertRaisesRegex(BufferError, "require gradient"):
            torch.from_dlpack(torch.ones(1, device=device, requires_grad=True))

    def test_numpy_says_that_it_does_not_know_the_device(self, device):
        with self.assertRaisesRegex((RuntimeError, BufferError), "[Uu]nsupported device"):
            np.from_dlpack(torch.ones(1, device=device))

    def test_numpy_takes_the_cpu_view(self, device):
        tensor = torch.arange(4.0, device=device)
        array = np.from_dlpack(torch.npu.as_cpu(tensor))
        array[0] = 9
        self.assertEqual(tensor[0].item(), 9)


class TestArrays(TestCase):
    def test_numpy_arrays_are_refused_with_the_way_around(self, device):
        tensor = torch.ones(2, device=device)
        for convert in (tensor.numpy, lambda: np.asarray(tensor), lambda: np.add(tensor, 1)):
            with self.assertRaisesRegex(TypeError, r"npu:0 .* Use Tensor.cpu\(\)"):
                convert()

    def test_force_copies(self, device):
        tensor = torch.ones(2, device=device, requires_grad=True)
        self.assertEqual(tensor.numpy(force=True).tolist(), [1, 1])

    def test_there_is_no_array_interface(self, device):
        tensor = torch.ones(2, device=device)
        with self.assertRaises(AttributeError):
            _ = tensor.__array_interface__
        with self.assertRaisesRegex(AttributeError, "torch.npu.FloatTensor"):
            _ = tensor.__cuda_array_interface__

    def test_arrays_and_lists_become_tensors(self, device):
        for source in (np.arange(3), [0, 1, 2], range(3)):
            for make in (torch.tensor, torch.as_tensor, torch.asarray):
                self.assertEqual(make(source, device=device).tolist(), [0, 1, 2])

    def test_numpy_scalars_take_part(self, device):
        tensor = torch.ones(2, device=device)
        self.assertEqual((tensor * np.float32(2)).tolist(), [2, 2])
        self.assertEqual(tensor[np.int64(1)].item(), 1)


instantiate_device_type_tests(TestDlpack, globals(), only_for="npu")
instantiate_device_type_tests(TestArrays, globals(), only_for="npu")

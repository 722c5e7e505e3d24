"""Storages on npu, as torch's device-generic suites ask for them."""

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize


class TestStorage(TestCase):
    def test_one_can_be_made(self, device):
        storage = torch.UntypedStorage(16, device=device)
        self.assertEqual(storage.device, torch.device(device))
        self.assertEqual((storage.nbytes(), len(storage)), (16, 16))
        self.assertEqual(torch.UntypedStorage([1, 2, 3], device=device).tolist(), [1, 2, 3])

    @dtypes(torch.float32, torch.int8, torch.complex64)
    def test_a_tensors_bytes_are_its_storage(self, device, dtype):
        tensor = torch.ones(6, dtype=dtype, device=device)
        storage = tensor.untyped_storage()
        self.assertEqual(storage.nbytes(), 6 * tensor.element_size())
        self.assertEqual(storage.data_ptr(), tensor.data_ptr())
        self.assertTrue(storage.is_npu)
        self.assertFalse(storage.is_cuda)

    def test_items_and_slices_are_bytes(self, device):
        storage = torch.arange(5, dtype=torch.uint8, device=device).untyped_storage()
        self.assertEqual(storage[3], 3)
        storage[3] = 30
        self.assertEqual(storage[1:4].tolist(), [1, 2, 30])
        storage.fill_(7)
        self.assertEqual(storage.tolist(), [7] * 5)
        with self.assertRaises(IndexError):
            storage[9]

    @parametrize("bytes_after", [0, 8, 5000])
    def test_resizing_keeps_what_fits(self, device, bytes_after):
        storage = torch.arange(16, dtype=torch.uint8, device=device).untyped_storage()
        storage.resize_(bytes_after)
        self.assertEqual(storage.nbytes(), bytes_after)
        kept = min(16, bytes_after)
        self.assertEqual(storage.tolist()[:kept], list(range(kept)))

    def test_a_storage_that_is_emptied_and_filled_again_serves_its_tensor(self, device):
        tensor = torch.arange(4.0, device=device)
        storage = tensor.untyped_storage()
        storage.resize_(0)
        self.assertEqual(storage.nbytes(), 0)
        storage.resize_(16)
        tensor.copy_(torch.arange(4.0))
        self.assertEqual(tensor.tolist(), [0, 1, 2, 3])

    def test_it_moves_between_devices(self, device):
        storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
        for there in (storage.npu(), storage.to(device=device)):
            self.assertEqual(there.device, torch.device(device))
            self.assertEqual(there.cpu().tolist(), [0, 1, 2, 3])
        copied = torch.UntypedStorage(4, device=device)
        copied.copy_(storage)
        self.assertEqual(copied.tolist(), [0, 1, 2, 3])

    def test_tensors_can_be_set_to_it(self, device):
        storage = torch.arange(8, dtype=torch.uint8, device=device).untyped_storage()
        tensor = torch.empty(0, dtype=torch.int16, device=device)
        tensor.set_(storage, 1, (3,), (1,))
        self.assertEqual(tensor.tolist(), [0x0302, 0x0504, 0x0706])
        self.assertTrue(tensor.untyped_storage() is storage)

    def test_a_storage_of_the_cpu_is_refused_for_an_npu_tensor(self, device):
        with self.assertRaisesRegex(RuntimeError, "device"):
            torch.empty(0, device=device).set_(torch.ones(3).untyped_storage())

    def test_pinning_is_for_the_cpu(self, device):
        pinned = torch.arange(3).untyped_storage().pin_memory()
        self.assertTrue(pinned.is_pinned())
        self.assertFalse(torch.ones(1, device=device).is_pinned())
        with self.assertRaisesRegex(RuntimeError, "only dense CPU tensors can be pinned"):
            torch.ones(1, device=device).pin_memory()

    def test_elements_of_types(self, device):
        storage = torch.tensor([1.5], device=device).untyped_storage()
        view = torch.empty(0, dtype=torch.int32, device=device).set_(storage, 0, (1,), (1,))
        self.assertEqual(view.item(), 0x3FC00000)
        self.assertEqual(view.view(torch.float32).item(), 1.5)

    def test_out_of_memory_leaves_the_storage_as_it_was(self, device):
        storage = torch.arange(4, dtype=torch.uint8, device=device).untyped_storage()
        with self.assertRaises(torch.OutOfMemoryError):
            storage.resize_(1 << 60)
        self.assertEqual(storage.tolist(), [0, 1, 2, 3])


instantiate_device_type_tests(TestStorage, globals(), only_for="npu")

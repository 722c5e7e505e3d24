"""Device and pinned memory, as torch's device-generic suites ask; the pool is in test_memory."""

import gc

import pytest
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize


def allocated(device) -> int:
    gc.collect()
    return torch.accelerator.memory_allocated(device)


class TestMemory(TestCase):
    @dtypes(torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64)
    def test_an_allocation_has_room_for_its_elements(self, device, dtype):
        for shape in ((), (1,), (100,), (10, 20, 30), (0,), (3, 0, 2)):
            x = torch.zeros(shape, dtype=dtype, device=device)
            self.assertEqual(x.shape, shape)
            self.assertEqual(x.untyped_storage().nbytes(), x.numel() * x.element_size())
            self.assertFalse(x.any().item())

    def test_memory_formats_are_kept(self, device):
        x = torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last)
        self.assertTrue(x.is_contiguous(memory_format=torch.channels_last))
        self.assertEqual(torch.empty_like(x).stride(), x.stride())

    def test_the_accelerators_figures_are_the_pools(self, device):
        x = torch.ones(300_000, device=device)
        self.assertEqual(
            torch.accelerator.memory_allocated(device), torch.npu.memory_allocated(device)
        )
        self.assertEqual(
            torch.accelerator.memory_reserved(device), torch.npu.memory_reserved(device)
        )
        self.assertGreaterEqual(torch.accelerator.memory_allocated(device), x.nbytes)
        self.assertGreaterEqual(
            torch.accelerator.max_memory_allocated(device),
            torch.accelerator.memory_allocated(device),
        )

    @parametrize("how", ["copies", "views", "gradients", "in place", "failures", "resizes"])
    def test_nothing_stays_behind(self, device, how):
        def work():
            x = torch.randn(3000, device=device, requires_grad=how == "gradients")
            if how == "copies":
                x.cpu().to(device).clone().to(torch.float64)
            elif how == "views":
                x.view(30, 100)[3:, ::2].t().reshape(-1).sum()
            elif how == "gradients":
                (x * 2).relu().sum().backward()
            elif how == "in place":
                x.add_(1).mul_(2).sqrt_()
            elif how == "failures":
                with self.assertRaises(RuntimeError):
                    x @ torch.ones(7, device=device)
            else:
                x.resize_(20_000).fill_(1).resize_(3)

        work()
        before = allocated(device)
        for _ in range(200):
            work()
        self.assertEqual(allocated(device), before)

    def test_growing_keeps_the_bytes_and_the_device(self, device):
        for start in (3, 5000):
            x = torch.arange(float(start), device=device)
            x.resize_(50_000)
            self.assertEqual(x[:start], torch.arange(float(start), device=device))
            self.assertEqual(x.untyped_storage().device, torch.device(device))

    def test_setting_a_longer_view_grows_the_storage(self, device):
        storage = torch.arange(4.0, device=device).untyped_storage()
        x = torch.empty(0, device=device).set_(storage, 2, (3000,), (1,))
        self.assertEqual(x[:2].tolist(), [2, 3])
        self.assertEqual(storage.nbytes(), 3002 * 4)

    def test_out_of_memory_is_torchs_error(self, device):
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(1 << 60, dtype=torch.uint8, device=device)
        self.assertEqual(torch.ones(3, device=device).sum().item(), 3)

    def test_emptying_the_cache_leaves_tensors_alone(self, device):
        kept = torch.arange(70_000, device=device)
        torch.accelerator.empty_cache()
        self.assertEqual(kept.cpu(), torch.arange(70_000))

    @pytest.mark.driver("sim", "two devices of one driver")
    def test_devices_count_their_own(self, device):
        first, second = allocated("npu:0"), allocated("npu:1")
        x = torch.ones(100_000, device="npu:1")
        self.assertEqual(allocated("npu:0"), first)
        self.assertGreaterEqual(allocated("npu:1"), second + x.nbytes)
        x.resize_(300_000)
        self.assertEqual(allocated("npu:0"), first)
        self.assertEqual(x.untyped_storage().device, torch.device("npu:1"))
        del x
        self.assertEqual(allocated("npu:1"), second)


class TestPinnedMemory(TestCase):
    def test_tensors_views_and_storages_are_pinned(self, device):
        plain = torch.arange(20.0)
        self.assertFalse(plain.is_pinned())
        self.assertFalse(plain.untyped_storage().is_pinned())
        pinned = plain.pin_memory()
        for tensor in (pinned, pinned[2:5], pinned[::2], pinned.view(4, 5)):
            self.assertTrue(tensor.is_pinned())
        self.assertEqual(pinned, plain)
        self.assertTrue(plain.untyped_storage().pin_memory().is_pinned())

    def test_what_is_pinned_is_not_pinned_again(self, device):
        pinned = torch.ones(10).pin_memory()
        self.assertEqual(pinned.pin_memory().data_ptr(), pinned.data_ptr())

    def test_a_tensor_over_pinned_storage_is_pinned(self, device):
        shared = torch.empty(0).set_(torch.ones(10).pin_memory().untyped_storage())
        self.assertTrue(shared.is_pinned())

    def test_factories_pin(self, device):
        for made in (
            torch.zeros(3, pin_memory=True),
            torch.empty(3, pin_memory=True),
            torch.tensor([1, 2], pin_memory=True),
        ):
            self.assertTrue(made.is_pinned())
            self.assertEqual(made.device.type, "cpu")

    @parametrize("non_blocking", [True, False])
    def test_copies_from_and_to_it(self, device, non_blocking):
        pinned = torch.arange(10_000.0).pin_memory()
        there = pinned.to(device, non_blocking=non_blocking)
        pinned.zero_()
        self.assertEqual(there.sum().item(), sum(range(10_000)))
        back = torch.empty(10_000, pin_memory=True)
        back.copy_(there, non_blocking=non_blocking)
        torch.accelerator.synchronize()
        self.assertEqual(back, torch.arange(10_000.0))


instantiate_device_type_tests(TestMemory, globals(), only_for="npu")
instantiate_device_type_tests(TestPinnedMemory, globals(), only_for="npu")

"""Streams, as torch's device-generic suites ask for them; their order is in test_streams."""

import threading

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize


class TestStreams(TestCase):
    def tearDown(self):
        torch.accelerator.set_stream(torch.npu.default_stream())
        super().tearDown()

    @parametrize("kind", ["torch.Stream", "torch.npu.Stream"])
    def test_one_belongs_to_the_device_it_was_made_for(self, device, kind):
        make = torch.Stream if kind == "torch.Stream" else torch.npu.Stream
        for stream in (make(device=device), make(torch.device(device).index), make()):
            self.assertEqual(stream.device, torch.device(device))
            self.assertEqual(stream.device_index, 0)

    def test_one_is_found_again_by_its_numbers(self, device):
        stream = torch.Stream(device=device)
        same = torch.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        self.assertEqual(same, stream)
        self.assertEqual(hash(same), hash(stream))
        self.assertNotEqual(torch.Stream(device=device), stream)

    def test_numbers_of_no_stream_are_refused(self, device):
        with self.assertRaisesRegex(RuntimeError, r"must exist.*\[stream-unknown\]"):
            torch.accelerator.set_stream(
                torch.Stream(stream_id=1000, device_index=0, device_type=20)
            )

    def test_one_prints_its_device_and_number(self, device):
        stream = torch.Stream(device=device)
        self.assertRegex(
            repr(stream), f"device_type=npu, device_index=0, stream_id={stream.stream_id}"
        )

    def test_with_makes_it_current_and_puts_the_former_back(self, device):
        outer, inner = torch.Stream(device=device), torch.Stream(device=device)
        before = torch.accelerator.current_stream()
        with outer as entered:
            self.assertEqual(entered, outer)
            with inner:
                self.assertEqual(torch.accelerator.current_stream(), inner)
            self.assertEqual(torch.accelerator.current_stream(), outer)
        self.assertEqual(torch.accelerator.current_stream(), before)

    def test_an_exception_puts_the_former_back(self, device):
        before = torch.accelerator.current_stream()
        with self.assertRaisesRegex(ValueError, "on purpose"), torch.Stream(device=device):
            raise ValueError("on purpose")
        self.assertEqual(torch.accelerator.current_stream(), before)

    def test_setting_one_holds_for_this_thread_alone(self, device):
        stream = torch.Stream(device=device)
        torch.accelerator.set_stream(stream)
        self.assertEqual(torch.accelerator.current_stream(), stream)
        seen = []
        thread = threading.Thread(
            target=lambda: seen.append(torch.accelerator.current_stream(device))
        )
        thread.start()
        thread.join()
        self.assertEqual(seen, [torch.npu.default_stream(device)])

    def test_one_without_work_is_done(self, device):
        stream = torch.Stream(device=device)
        self.assertTrue(stream.query())
        stream.synchronize()
        torch.accelerator.synchronize(device)
        self.assertTrue(stream.query())

    def test_host_kernels_on_one_are_done_when_the_call_returns(self, device):
        with torch.Stream(device=device) as stream:
            x = torch.arange(100.0, device=device).mul_(2)
            self.assertTrue(stream.query())
        self.assertEqual(x.sum().item(), 9900)

    def test_waiting_for_one_another_and_oneself(self, device):
        first, second = torch.Stream(device=device), torch.Stream(device=device)
        with first:
            x = torch.ones(10, device=device)
        second.wait_stream(first)
        second.wait_event(first.record_event())
        first.wait_stream(first)
        with second:
            self.assertEqual((x + 1).sum().item(), 20)

    def test_priorities_have_streams_of_their_own(self, device):
        normal, high = torch.Stream(device=device), torch.Stream(device=device, priority=-1)
        self.assertNotEqual(normal, high)
        with high:
            self.assertEqual(torch.ones(3, device=device).sum().item(), 3)

    def test_gradients_run_on_the_stream_of_the_forward(self, device):
        seen = []
        with torch.Stream(device=device) as stream:
            x = torch.ones(3, device=device, requires_grad=True)
            y = x * 2
            y.register_hook(lambda _: seen.append(torch.accelerator.current_stream()))
            y.sum().backward()
        self.assertEqual(seen, [stream])
        self.assertEqual(x.grad.tolist(), [2, 2, 2])

    def test_a_tensor_takes_streams_that_use_it(self, device):
        stream = torch.Stream(device=device)
        x = torch.ones(10, device=device)
        x.record_stream(stream)
        x[3:].record_stream(stream)
        torch.empty(0, device=device).record_stream(stream)
        self.assertEqual(x.sum().item(), 10)

    @pytest.mark.driver("sim", "two devices of one driver")
    def test_streams_of_two_devices(self, device):
        first, second = torch.Stream(device="npu:0"), torch.Stream(device="npu:1")
        self.assertEqual((first.device_index, second.device_index), (0, 1))
        with second:
            self.assertEqual(torch.accelerator.current_device_index(), 1)
            self.assertEqual(torch.accelerator.current_stream(), second)
            x = torch.ones(4, device="npu:1")
            with first:
                self.assertEqual(torch.accelerator.current_device_index(), 0)
            self.assertEqual(torch.accelerator.current_device_index(), 1)
        self.assertEqual(torch.accelerator.current_device_index(), 0)
        first.wait_stream(second)
        self.assertEqual(x.to("npu:0").sum().item(), 4)


instantiate_device_type_tests(TestStreams, globals(), only_for="npu")

"""Events, as in torch's device-generic suites; test_streams tests their order."""

import time

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize


class TestEvents(TestCase):
    @parametrize("kind", ["torch.Event", "torch.npu.Event"])
    def test_one_has_no_number_before_it_is_recorded(self, device, kind):
        make = torch.Event if kind == "torch.Event" else torch.npu.Event
        for event in (make(device=device), make()):
            self.assertEqual(event.device.type, "npu")
            self.assertEqual(event.event_id, 0)
            self.assertTrue(event.query())

    def test_a_record_gives_it_a_number_and_the_streams_device(self, device):
        stream = torch.Stream(device=device)
        first, second = stream.record_event(), stream.record_event()
        self.assertEqual(first.device, torch.device(device))
        self.assertNotIn(0, (first.event_id, second.event_id))
        self.assertNotEqual(first.event_id, second.event_id)

    def test_a_stream_records_the_event_it_is_given(self, device):
        event = torch.Event(device=device)
        self.assertIs(torch.Stream(device=device).record_event(event), event)
        event.synchronize()
        self.assertTrue(event.query())

    def test_one_is_done_after_waiting_for_it(self, device):
        event = torch.Event(device=device)
        event.synchronize()  # never recorded: nothing to wait for
        torch.ones(10, device=device).mul_(2)
        event.record()
        event.synchronize()
        self.assertTrue(event.query())

    def test_one_may_be_recorded_again(self, device):
        event = torch.Event(device=device, enable_timing=True)
        start = torch.Event(device=device, enable_timing=True)
        start.record()
        event.record()
        event.synchronize()
        first = start.elapsed_time(event)
        time.sleep(0.01)
        event.record(torch.Stream(device=device))
        event.synchronize()
        self.assertGreaterEqual(start.elapsed_time(event), first + 9)

    def test_the_time_between_two_is_milliseconds(self, device):
        start, end = (torch.Event(device=device, enable_timing=True) for _ in range(2))
        before = time.perf_counter()
        start.record()
        time.sleep(0.02)
        end.record()
        end.synchronize()
        took_ms = (time.perf_counter() - before) * 1e3
        self.assertGreaterEqual(start.elapsed_time(end), 20)
        self.assertLessEqual(start.elapsed_time(end), took_ms)
        self.assertLessEqual(end.elapsed_time(start), -20)

    def test_events_without_timing_have_no_time(self, device):
        first, second = (torch.Event(device=device, enable_timing=False) for _ in range(2))
        first.record()
        second.record()
        with self.assertRaisesRegex(ValueError, "enable_timing=True"):
            first.elapsed_time(second)

    def test_events_that_were_not_recorded_have_no_time(self, device):
        first, second = (torch.Event(device=device, enable_timing=True) for _ in range(2))
        second.record()
        with self.assertRaisesRegex((RuntimeError, ValueError), "record"):
            first.elapsed_time(second)

    def test_streams_wait_for_events_of_others_and_for_none(self, device):
        first, second = torch.Stream(device=device), torch.Stream(device=device)
        event = first.record_event()
        second.wait_event(event)
        event.wait(second)
        torch.Event(device=device).wait()
        second.wait_event(torch.Event(device=device))
        second.synchronize()
        self.assertTrue(event.query())

    def test_one_prints_its_device(self, device):
        self.assertIn("device_type=npu", repr(torch.Stream(device=device).record_event()))

    def test_many_come_and_go(self, device):
        stream = torch.Stream(device=device)
        for _ in range(2000):
            stream.record_event()
        kept = [stream.record_event() for _ in range(50)]
        stream.synchronize()
        self.assertTrue(all(event.query() for event in kept))

    @pytest.mark.driver("sim", "two devices of one driver")
    def test_events_of_two_devices(self, device):
        events = [torch.Stream(device=f"npu:{index}").record_event() for index in range(2)]
        self.assertEqual([event.device.index for event in events], [0, 1])
        torch.Stream(device="npu:0").wait_event(events[1])
        with self.assertRaisesRegex(RuntimeError, "device"):
            events[0].record(torch.Stream(device="npu:1"))


instantiate_device_type_tests(TestEvents, globals(), only_for="npu")

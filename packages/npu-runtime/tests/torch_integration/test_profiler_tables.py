"""Columns of torch's profiler tables by the device's name."""

import pytest
import torch
from torch.profiler import profile

COLUMNS = (
    "npu_time",
    "npu_time_total",
    "self_npu_time_total",
    "npu_memory_usage",
    "self_npu_memory_usage",
)


@pytest.fixture(scope="module")
def averages():
    x = torch.ones(64, device="npu")
    with profile(profile_memory=True, with_stack=True) as profiler:
        (x + x).to("cpu")
    return profiler.key_averages()


@pytest.mark.parametrize("column", COLUMNS)
def test_table_is_sorted_by_a_column_under_the_devices_name(averages, column):
    by_device = averages.table(sort_by=column.replace("npu", "device"))
    assert averages.table(sort_by=column) == by_device
    values = [getattr(row, column) for row in averages]
    assert values == [getattr(row, column.replace("npu", "device")) for row in averages]


def test_single_events_have_the_columns(averages):
    with profile() as profiler:
        torch.ones(64, device="npu")
    assert all(event.npu_time_total == event.device_time_total for event in profiler.events())


def test_stacks_are_exported_by_the_devices_time(averages, tmp_path):
    averages.export_stacks(str(tmp_path / "own.txt"), "self_npu_time_total")
    averages.export_stacks(str(tmp_path / "torch.txt"), "self_privateuse1_time_total")
    assert (tmp_path / "own.txt").read_text() == (tmp_path / "torch.txt").read_text()

"""Names of npu for the columns of torch's profiler tables.

Torch 2.13 translates cuda, xpu and privateuse1 in `sort_by` and in metrics of stacks into its own
attributes of devices, but not the name of a renamed device.
"""

from typing import Any

from torch.autograd import profiler_util

__all__ = ["name_npu_columns"]

_COLUMNS = (
    "{}_time", "{}_time_total", "self_{}_time_total", "{}_memory_usage", "self_{}_memory_usage",
)  # fmt: skip


def name_npu_columns() -> None:
    """Adds `self_npu_time_total` and its like to the rows of torch's profiler tables."""
    events: Any = profiler_util
    for column in _COLUMNS:
        # The only class shared by table rows and single events.
        name, own = column.format("npu"), column.format("device")
        setattr(events.FormattedTimesMixin, name, _attribute(own))
    known = events.EventList.supported_export_stacks_metrics

    def metrics(self: Any) -> list[str]:
        return [*known(self), "self_npu_time_total"]

    events.EventList.supported_export_stacks_metrics = metrics


def _attribute(name: str) -> property:
    return property(lambda row: getattr(row, name))

import torch

import npu_ops
from npu_runtime import observe


def test_calls_are_counted_per_op_and_most_frequent_first():
    x = torch.ones(2, 2, device="npu")
    npu_ops.reset_fallback_report()
    assert npu_ops.fallback_report() == {}
    x @ x
    for _ in range(3):
        torch.cumsum(x, 0)
    report = npu_ops.fallback_report()
    assert report == {"aten::cumsum": 3, "aten::mm": 1}
    assert list(report) == ["aten::cumsum", "aten::mm"]


def test_own_kernels_are_no_fallback():
    npu_ops.reset_fallback_report()
    x = torch.empty(4, device="npu")
    x.view(2, 2)[1].copy_(torch.zeros(2))
    x[2].item()
    torch.relu(x + 1)
    assert npu_ops.fallback_report() == {}


def test_structured_ops_take_no_detour():
    x = torch.ones(4, device="npu")
    npu_ops.reset_fallback_report()
    torch.cumsum(x, 0)
    assert npu_ops.fallback_report() == {"aten::cumsum": 1}


def test_ops_of_other_libraries_are_counted():
    library = torch.library.Library("npu_test_report", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    x = torch.ones(2, device="npu")
    npu_ops.reset_fallback_report()
    assert torch.ops.npu_test_report.twice(x).tolist() == [2.0, 2.0]
    assert npu_ops.fallback_report() == {"npu_test_report::twice": 1}


def test_a_listener_gets_a_span_per_call_and_changes_no_result():
    x = torch.arange(4.0, device="npu")
    expected = torch.cumsum(x, 0)
    events = []
    observe.add_listener(events.extend)
    try:
        got = torch.cumsum(x, 0)
        x.cpu()
        observe.flush()
    finally:
        observe.remove_listener(events.extend)
    assert torch.equal(got, expected)
    spans = [event for event in events if event.category == "fallback"]
    assert "aten::cumsum" in [span.name for span in spans]
    assert all(span.kind == "span" and span.duration_ns > 0 for span in spans)
    copies = [(event.name, event.args) for event in events if event.category == "copy"]
    assert ("npu to cpu", {"bytes": 16, "device_index": 0}) in copies


def test_nothing_is_recorded_when_nobody_listens():
    events = []
    torch.ones(4, device="npu").add_(1)
    observe.add_listener(events.extend)
    try:
        observe.flush()
    finally:
        observe.remove_listener(events.extend)
    assert [event for event in events if event.category == "fallback"] == []

"""Events of the device, and the origins of its layers."""

import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.listeners.device_events import DeviceEvents, LayerOrigins
from npu_runtime import observe
from npu_runtime.observe import Event


def samples(*values, name="allocated_bytes"):
    return [
        observe.Event("counter", "memory", name, start_ns=time, value=value)
        for time, value in enumerate(values)
    ]


def test_events_are_heard_between_start_and_stop():
    listener = DeviceEvents()
    observe.instant("test", "before")
    listener.start()
    with observe.span("compile", "lower", nodes=3):
        observe.instant("test", "inside")
    observe.counter("memory", "allocated_bytes", 5)
    listener.stop()
    observe.instant("test", "after")
    events = listener.take()
    assert [event.name for event in events] == ["inside", "lower", "allocated_bytes"]
    assert events[1].args == {"nodes": 3}


def test_events_are_taken_once():
    listener = DeviceEvents()
    listener.hear([observe.Event("instant", "c", "a", 1)])
    assert len(listener.take()) == 1
    assert listener.take() == []


def test_fetch_takes_events_over_only_while_listening():
    listener = DeviceEvents()
    listener.fetch()
    listener.start()
    observe.instant("test", "inside")
    listener.fetch()
    listener.stop()
    assert [event.name for event in listener.take()] == ["inside"]


def test_events_past_the_limit_are_counted():
    listener = DeviceEvents(max_events=2)
    listener.hear([observe.Event("instant", "c", str(n), n) for n in range(3)])
    listener.hear([observe.Event("instant", "c", "late", 9)])
    assert [event.name for event in listener.take()] == ["0", "1"]
    assert listener.dropped == 2


def test_events_lost_by_the_runtime_are_counted():
    listener = DeviceEvents()
    listener.hear([observe.Event("counter", "observe", "dropped_events", 1, value=12.0)])
    assert listener.dropped == 12
    assert listener.take() == []


def test_events_that_the_watcher_refuses_are_not_kept():
    listener = DeviceEvents(watch=lambda event: event.name != "no")
    listener.hear([observe.Event("instant", "c", name, 1) for name in ("yes", "no")])
    assert [event.name for event in listener.take()] == ["yes"]


def test_samples_past_the_limit_are_thinned_and_keep_peaks():
    listener = DeviceEvents(max_samples=4)
    listener.hear(samples(1, 9, 2, 3, 4))
    assert [event.value for event in listener.take()] == [9, 3, 4]


def test_thinning_keeps_counters_apart():
    listener = DeviceEvents(max_samples=3)
    listener.hear([*samples(1, 2, 1, 2), *samples(100, name="reserved_bytes")])
    kept = {(event.name, event.value) for event in listener.take()}
    assert kept == {("allocated_bytes", 2), ("reserved_bytes", 100)}


def test_stop_without_start_does_nothing():
    DeviceEvents().stop()


def told(program, **origins):
    return Event("instant", "layer_origins", program, 0, args={"origins": origins})


def test_layer_is_found_by_the_call_that_its_name_begins_with():
    origins = LayerOrigins()
    origins.hear(told("graph_0", addmm_3=("layers.0.mlp", "model.py:7")))
    expected = {"module": "layers.0.mlp", "line": "model.py:7"}
    assert origins.find("graph_0", "addmm_3/aten.addmm.default") == expected
    assert origins.find("graph_0", "addmm_3") == expected
    assert origins.find("graph_0", "addmm_33/aten.addmm.default") == {}
    assert origins.find("graph_1", "addmm_3") == {}


def test_only_what_is_known_is_said():
    origins = LayerOrigins()
    origins.hear(told("graph_0", add=("", "model.py:7"), mm=("fc", "")))
    assert origins.find("graph_0", "add") == {"line": "model.py:7"}
    assert origins.find("graph_0", "mm") == {"module": "fc"}


def test_later_program_of_the_name_replaces_the_earlier():
    origins = LayerOrigins()
    origins.hear(told("graph_0", add=("a", "")))
    origins.hear(told("graph_0", mul=("b", "")))
    assert origins.find("graph_0", "add") == {}

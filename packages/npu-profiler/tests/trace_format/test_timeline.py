import dataclasses

import pytest

from npu_profiler.trace_format.timeline import Slice, Track, nested

TRACK = Track(1, 1, "thread", "process")
OTHER = Track(1, 2, "thread 2", "process")


def piece(name, start, end, track=TRACK):
    return Slice(track, "cpu_op", name, start, end - start)


def test_nested_puts_parent_before_child_that_starts_with_it():
    found = nested([piece("child", 0, 5), piece("parent", 0, 10)])
    assert [item.name for item in found] == ["parent", "child"]


def test_nested_cuts_child_that_outlives_its_parent():
    found = nested([piece("parent", 0, 10), piece("child", 8, 11), piece("grandchild", 9, 12)])
    assert [(item.name, item.end_ns) for item in found] == [
        ("parent", 10),
        ("child", 10),
        ("grandchild", 10),
    ]


def test_nested_leaves_other_tracks_and_followers_alone():
    pieces = [piece("a", 0, 10), piece("b", 5, 15, OTHER), piece("c", 10, 12)]
    assert nested(pieces) == pieces


def test_values_of_a_timeline_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TRACK.name = "another"

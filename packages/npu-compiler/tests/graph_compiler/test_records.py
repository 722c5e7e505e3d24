"""Collecting records."""

from __future__ import annotations

from npu_compiler.graph_compiler.records import GraphRecord, collecting, publish

RECORD = GraphRecord("graph", "inference", 0, (), (), 0, 0)


def test_each_collector_gets_each_record_while_it_is_open():
    with collecting() as outer:
        publish(RECORD)
        with collecting() as inner:
            publish(RECORD)
        publish(RECORD)
    publish(RECORD)
    assert (len(outer), len(inner)) == (3, 1)

import json
import re
import threading
import urllib.error
import urllib.request

import pytest

from npu_profiler.errors import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.reports.page.building import build_page, notes
from npu_profiler.reports.page.serving import make_server
from npu_profiler.reports.page.timeline_data import choose
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Sample, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")


def op(name, start, end):
    return Slice(MAIN, "cpu_op", name, start, end - start)


@pytest.fixture
def trace(write_trace):
    return load_trace(
        write_trace(
            slices=[
                op("aten::linear", 0, 10_000),
                op("</script><b>", 1_000, 2_000),
                Slice(PROGRAMS, "program", "net", 4_000, 5_000, {"device": "CPU"}),
            ],
            instants=[Instant(MAIN, "fallback", "aten::roll", 3_000)],
            samples=[Sample(PROGRAMS, "memory", "allocated_bytes", t * 1_000, t) for t in (1, 5)],
            flows=[Flow("launch", "launch", FlowEnd(MAIN, 3_500), FlowEnd(PROGRAMS, 4_000))],
        )
    )


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))


def boxes(document, row, depth):
    level = document["tracks"][row]["levels"][depth]
    at = 0
    found = []
    for step, duration, name in zip(level["s"], level["d"], level["n"], strict=True):
        at += step
        found.append((at, duration, name if name < 0 else document["names"][name]))
    return found


def test_a_small_trace_is_drawn_as_it_is(trace):
    timeline = choose(trace)
    document = timeline.document
    assert boxes(document, 0, 0) == [(0, 10_000, "aten::linear")]
    assert boxes(document, 0, 1) == [(1_000, 1_000, "</script><b>")]
    assert boxes(document, 1, 0) == [(4_000, 5_000, "net")]
    assert document["details"] == {"1/0/0": "device: CPU"}
    assert document["arrows"] == [(0, 3_500, 1, 4_000)]
    assert [(row, time) for row, time, _ in document["marks"]] == [(0, 3_000)]
    (curve,) = document["counters"]
    assert (curve["t"], curve["v"]) == ([1_000, 4_000], [1.0, 5.0])
    assert (timeline.slices, timeline.drawn, timeline.cell_ns) == (3, 3, 0)
    assert notes(timeline) == []


def test_a_large_trace_gathers_short_slices_and_says_so(write_trace):
    short = [op("aten::add", at * 1_000, at * 1_000 + 100 + at % 7) for at in range(2_000)]
    slices = [*short, op("aten::mm", 3_000_000, 4_000_000)]
    timeline = choose(load_trace(write_trace(slices=slices)), limit=100)
    assert timeline.slices == 2_001
    assert timeline.drawn <= 100
    (level,) = timeline.document["tracks"][0]["levels"]
    gathered = sum(level["c"].values())
    assert gathered + level["n"].count(timeline.document["names"].index("aten::mm")) == 2_001
    assert boxes(timeline.document, 0, 0)[-1] == (3_000_000, 1_000_000, "aten::mm")
    (note,) = notes(timeline)
    assert f"2,001 slices are drawn as {timeline.drawn:,} boxes" in note


def test_the_page_holds_everything_and_asks_nobody(trace):
    page = build_page(trace, choose(trace))
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    without_data = re.sub(r"<script type=.application/json.*?</script>", "", page, flags=re.DOTALL)
    assert "http:" not in without_data
    assert "https:" not in without_data
    assert "default-src 'none'" in page
    assert "@@" not in page
    document = data_of(page)
    assert "</script><b>" in document["names"]
    assert page.count("</script>") == 2
    assert {"op", "program"} <= document["tables"].keys()
    ops = document["tables"]["op"]
    assert ops["rows"][0][0] == "aten::linear"


def test_the_page_is_offered_to_this_machine(trace):
    server = make_server("<p>page</p>", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    host, port = server.server_address[:2]
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=10) as answer:
            assert answer.read() == b"<p>page</p>"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"http://{host}:{port}/etc", timeout=10)
        refused.value.close()
        with pytest.raises(TraceError, match="must be one that is free") as raised:
            make_server("", port)
        assert raised.value.code == "view-port"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert host == "127.0.0.1"

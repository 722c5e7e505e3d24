import base64
import contextlib
import gzip
import json
import re
import threading
import urllib.error
import urllib.request

import pytest

from npu_profiler.errors import TraceError
from npu_profiler.reading import check_trace, load_trace
from npu_profiler.reports.page.view import build_page, build_report, make_server
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Sample, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")


def op(name, start, end):
    return Slice(MAIN, "cpu_op", name, start, end - start)


@pytest.fixture
def trace_file(write_trace):
    return write_trace(
        name="trace.json.gz",
        slices=[
            op("aten::linear", 0, 10_000),
            op("</script><b>", 1_000, 2_000),
            Slice(PROGRAMS, "program", "net", 4_000, 5_000, {"device": "CPU"}),
        ],
        instants=[Instant(MAIN, "fallback", "aten::roll", 3_000)],
        samples=[Sample(PROGRAMS, "memory", "allocated_bytes", t * 1_000, t) for t in (1, 5)],
        flows=[Flow("launch", "launch", FlowEnd(MAIN, 3_500), FlowEnd(PROGRAMS, 4_000))],
    )


def part(page, name):
    return re.search(rf'<script type="[^"]*" id="{name}">(.*?)</script>', page, re.DOTALL).group(1)


def test_the_page_holds_the_whole_trace_in_one_packed_stream(trace_file):
    packed = base64.b64decode(part(build_page(load_trace(trace_file)), "trace"))
    # Each piece that the recorder wrote is a separate stream, and browsers read only the first.
    assert trace_file.read_bytes().count(b"\x1f\x8b\x08") > packed.count(b"\x1f\x8b\x08") == 1
    assert gzip.decompress(packed) == gzip.decompress(trace_file.read_bytes())


def test_the_page_asks_nobody(trace_file):
    page = build_page(load_trace(trace_file))
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert page.count("</script>") == 3


def test_the_report_has_the_summary_and_tables(trace_file):
    report = build_report(load_trace(trace_file))
    assert any(line.startswith("wall time:") for line in report["summary"])
    assert report["tables"].keys() == {"ops", "programs"}
    assert report["tables"]["ops"]["rows"][0][0] == "aten::linear"
    page = build_page(load_trace(trace_file))
    assert json.loads(part(page, "report")) == json.loads(json.dumps(report))


@contextlib.contextmanager
def served(path):
    server = make_server(path, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    host, port = server.server_address[:2]
    assert host == "127.0.0.1"
    try:
        yield port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


def refused(port, path, **headers):
    with pytest.raises(urllib.error.HTTPError) as raised:
        get(port, path, **headers)
    with raised.value as answer:
        return answer.code, answer.read().decode()


def test_the_server_gives_the_page_the_trace_unpacked_and_the_report(trace_file):
    with served(trace_file) as port:
        page = get(port, "/").decode()
        assert "<canvas" in page
        assert "connect-src 'self'" in page
        assert get(port, "/trace") == gzip.decompress(trace_file.read_bytes())
        assert "ops" in json.loads(get(port, "/report"))["tables"]


def test_the_server_answers_nobody_else(trace_file):
    with served(trace_file) as port:
        assert refused(port, "/etc")[0] == 404
        assert refused(port, "/trace", Host="elsewhere.example")[0] == 404
        with pytest.raises(TraceError, match="must be a free port") as raised:
            make_server(trace_file, port)
        assert raised.value.code == "view-port"


def test_a_trace_that_breaks_off_in_an_event_that_is_none_is_told_to_the_page(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents":[{"ph":"M","name":"process_name","pid":1}, 5]}')
    check_trace(path)
    with served(path) as port:
        code, text = refused(port, "/report")
    assert code == 500
    assert "[trace-invalid]" in text


def test_check_trace_refuses_what_is_no_trace(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(TraceError, match="must be a Chrome trace") as raised:
        check_trace(path)
    assert raised.value.code == "trace-invalid"

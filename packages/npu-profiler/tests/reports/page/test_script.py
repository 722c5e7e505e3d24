"""Results of the page's scripts, run by node without a browser; drawing is in load/page.py."""

import json
import random
import shutil
import subprocess

import pytest

from npu_profiler.reading import load_trace
from npu_profiler.reports.page import view
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Sample, Slice, Track

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

FOLDER = view._TEMPLATE.parent / "script"
COMPUTING = ("words", "columns", "reading", "flows", "sums", "search")
MAIN = Track(1, 1, "main thread", "python x.py", 2)
STEPS = Track(1, 2, "prefill and decode", "python x.py", 1)
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0", 1, 1)

READ = """
const bytes = new Uint8Array(require("fs").readFileSync(process.argv[2]));
const reader = new TraceReader(bytes);
while (!reader.readFor(1)) {}
const trace = reader.finish(), row = (one) => trace.rows.indexOf(one);
const name = ({ level, at }) => trace.words[level.names[at]];
const slices = (one) => one.levels.flatMap((level, depth) => [...level.starts].map((start, at) =>
  [start, level.ends[at] - start, depth, trace.words[level.names[at]]]));
"""


def run(script, path):
    source = "\n".join((FOLDER / f"{name}.js").read_text() for name in COMPUTING)
    program = path.with_suffix(".test.js")
    program.write_text(f'"use strict";\n{source}\n{READ}\nconsole.log(JSON.stringify({script}));')
    command = [NODE, program, path]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def op(name, start, end, **args):
    return Slice(MAIN, "cpu_op", name, start, end - start, args)


@pytest.fixture
def path(write_trace):
    return write_trace(
        slices=[
            op("aten::mul", 12_000, 13_000),
            op("aten::linear", 10_000, 20_000, text='a "quoted" }'),
            op("npu::program net", 30_000, 40_000),
            Slice(MAIN, "module", "größe\\", 29_000, 12_000),
            Slice(STEPS, "decode", "decode", 5_000, 40_000),
            Slice(PROGRAMS, "program", "net", 31_000, 5_000, {"device": "CPU"}),
            Slice(PROGRAMS, "layer", "linear_0", 31_000, 2_000),
        ],
        instants=[Instant(MAIN, "fallback", "aten::roll", 13_000)],
        samples=[Sample(PROGRAMS, "memory", "allocated_bytes", t * 1_000, t) for t in (15, 6)],
        flows=[Flow("launch", "launch", FlowEnd(MAIN, 30_500), FlowEnd(PROGRAMS, 31_000))],
    )


def test_every_script_of_the_page_is_there_and_is_javascript():
    assert {file.stem for file in FOLDER.iterdir()} == set(view._SCRIPTS)
    for file in FOLDER.iterdir():
        subprocess.run([NODE, "--check", file], check=True, timeout=60)


def test_the_page_reads_what_python_reads(path):
    found = run(
        "{rows: trace.rows.map((one) => [one.process.name, one.name, slices(one)]), end: trace.end,"
        " marks: trace.marks.map((one) => [row(one.row), one.time, one.text]),"
        " flows: trace.flows.map(({source, target, isLaunch}) =>"
        "  [row(source.row), source.time, row(target.row), target.time, isLaunch]),"
        " curves: trace.curves.map((one) => [one.name, [...one.times], [...one.values]]),"
        " count: trace.count, isComplete: trace.isComplete, first: firstOp(trace)}",
        path,
    )
    trace = load_trace(path)
    assert [one[:2] for one in found["rows"]] == [
        ["python x.py", "prefill and decode"],
        ["python x.py", "main thread"],
        ["npu:0", "programs"],
    ]
    tracks = {(track.process, track.name): track for track in trace.tracks}
    for process, name, slices in found["rows"]:
        expected = [
            [one.start_ns, one.duration_ns, len(list(one.ancestors())), one.name]
            for one in tracks[process, name]
        ]
        assert sorted(slices) == sorted(expected)
    assert found["marks"] == [[1, 8_000, "fallback aten::roll"]]
    assert found["flows"] == [[1, 25_500, 2, 26_000, True]]
    assert found["curves"] == [["memory allocated_bytes", [1_000, 10_000], [6, 15]]]
    assert (found["count"], found["isComplete"]) == (trace.event_count, True)
    assert (found["end"], found["first"]) == (trace.end_ns, 5_000)


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_event(path):
    text = path.read_text()
    path.write_text(text[: text.index('"linear_0"') + 4])
    found = run("[trace.count, trace.isComplete]", path)
    assert found == [load_trace(path).event_count, False]


def test_a_trace_of_torch_with_spaces_and_its_names_is_read(tmp_path):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 2.5, "dur": 4},
        {"ph": "X", "cat": "kernel", "name": "net", "pid": 0, "tid": 1, "ts": 3, "dur": 1.25},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 7, "tid": 7, "ts": 2.6},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 0, "tid": 1, "ts": 3, "bp": "e"},
    ]
    path = tmp_path / "torch.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2))
    found = run(
        "[trace.rows.map(slices), kindOf(trace, trace.rows[1].levels[0], 0),"
        " trace.flows.map((one) => one.isLaunch)]",
        path,
    )
    assert found == [[[[0, 4_000, 0, "aten::mm"]], [[500, 1_250, 0, "net"]]], "program", [True]]


def test_slices_in_any_order_are_sorted_the_enclosing_one_first(write_trace):
    random.seed(2)
    slices = [
        op(f"op{at}.{size}", at << 20, (at << 20) + size) for at in range(300) for size in (9, 5, 3)
    ]
    random.shuffle(slices)
    found = run("slices(trace.rows[0])", write_trace(slices=slices))
    depths = {9: 0, 5: 1, 3: 2}
    expected = [
        [at << 20, size, depth, f"op{at}.{size}"]
        for size, depth in depths.items()
        for at in range(300)
    ]
    assert found == expected


def test_sums_of_a_range_take_the_part_inside(path):
    found = run("sumRange(trace, [trace.rows[1]], 7500, 25000)", path)
    assert found == [
        {"name": "aten::linear", "count": 1, "total": 7_500, "mean": 7_500},
        {"name": "größe\\", "count": 1, "total": 1_000, "mean": 1_000},
        {"name": "aten::mul", "count": 1, "total": 500, "mean": 500},
    ]


def test_search_goes_from_match_to_match_through_all_rows_and_around(path):
    found = run(
        "(() => { const found = findMatches(trace, 'NET'), way = []; let at = null;"
        " for (let i = 0; i < 3; i++) way.push(name(at = nextMatch(trace, found, at, 1)));"
        " for (let i = 0; i < 3; i++) way.push(name(at = nextMatch(trace, found, at, -1)));"
        " return [found.count, way]; })()",
        path,
    )
    around = ["npu::program net", "net", "npu::program net"]
    assert found == [2, [*around, "net", "npu::program net", "net"]]


ARROWS = """(() => {
  const at = (row, depth, at) => ({row, level: row.levels[depth], depth, at});
  const op = at(trace.rows[1], 1, 1), layer = at(trace.rows[2], 1, 0);
  const effects = arrowsOf(trace, op).effects, causes = arrowsOf(trace, layer).causes;
  const around = ({source}) => chainOf(innermost(source.row, source.time)).map(name);
  const led = effects.map(({target}) => name(targetOf(target)));
  return [name(op), led, causes.map(around), chainOf(layer).map(name)];
})()"""


def test_arrows_lead_from_the_op_to_the_program_and_back_from_its_layer(path):
    found = run(ARROWS, path)
    around = ["größe\\", "npu::program net"]
    assert found == ["npu::program net", ["net"], [around], ["net", "linear_0"]]


def test_details_are_read_from_the_file_when_asked(path):
    found = run("parseEvent(trace.bytes, trace.rows[1].levels[0].places[0]).args", path)
    assert found == {"text": 'a "quoted" }'}

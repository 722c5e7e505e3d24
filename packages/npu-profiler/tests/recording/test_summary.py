import pytest

from npu_profiler.recording.summary import OpTime, Tally, op_times, usual_lines
from npu_profiler.trace_format.timeline import Instant, Piece, Slice, Track

MAIN = Track(1, 1, "main thread", "python")
DEVICE = Track(1000, 1, "programs", "npu:0")


def op(name, start, end, category="cpu_op", track=MAIN, **args):
    return Slice(track, category, name, start, end - start, args)


def summarize(*slices, instants=(), **facts):
    tally = Tally()
    tally.add(Piece(slices, instants))
    tally.add_ops(op_times(slices), events=0)
    return tally.summarize(facts)


def test_self_time_leaves_out_the_ops_that_were_called():
    found = summarize(
        op("aten::linear", 0, 100), op("aten::addmm", 10, 70), op("aten::copy_", 20, 30)
    )
    assert found.top_ops == (
        OpTime("aten::addmm", 1, 50, 60),
        OpTime("aten::linear", 1, 40, 100),
        OpTime("aten::copy_", 1, 10, 10),
    )


def test_total_time_counts_a_recursive_call_once():
    found = summarize(op("aten::sum", 0, 100), op("aten::sum", 10, 70))
    assert found.top_ops == (OpTime("aten::sum", 2, 100, 100),)


def test_ops_of_several_pieces_add_up():
    tally = Tally()
    tally.add_ops([("aten::mm", 2, 10, 20)], events=2)
    tally.add_ops([("aten::mm", 1, 5, 5), ("aten::add", 1, 1, 1)], events=3)
    found = tally.summarize({})
    assert (found.events, found.op_calls) == (5, 4)
    assert found.top_ops[0] == OpTime("aten::mm", 3, 15, 25)


def test_annotations_and_brackets_around_ops_are_no_ops():
    tally = Tally()
    names = [
        "Torch-Compiled Region: 0/0",
        "autograd::engine::evaluate_function: MmBackward0",
        "npu::program graph 0",
        "aten::mm",
        "MmBackward0",
    ]
    tally.add_ops([(name, 1, 10, 10) for name in names], events=5)
    found = tally.summarize({})
    assert [item.name for item in found.top_ops] == ["aten::mm", "npu::program graph 0"]
    assert found.op_calls == 2


def test_programs_and_fallbacks_are_counted():
    marks = tuple(Instant(MAIN, "fallback", name, 5) for name in ("roll", "sort", "sort"))
    found = summarize(op("p", 0, 2_000_000, "program", DEVICE), instants=marks)
    assert (found.programs, found.program_ns) == (1, 2_000_000)
    assert found.fallbacks == (("sort", 2), ("roll", 1))
    text = "\n".join(found.lines())
    assert "1 device programs (2.0 ms)" in text
    assert "fallbacks: 3 (sort x2, roll x1)" in text


def test_layers_are_held_against_the_programs_that_told_them():
    found = summarize(
        op("p", 0, 100_000, "program", DEVICE),
        op("fc", 0, 60_000, "layer", DEVICE, duration_us=60),
        op("add", 60_000, 95_000, "layer", DEVICE, duration_us=35),
        op("p", 200_000, 300_000, "program", DEVICE),
    )
    assert (found.layered_programs, found.layered_ns, found.layer_ns) == (1, 100_000, 95_000)
    assert "layers of 1 runs: 95.0% of the time of these runs" in found.lines()


def test_lines_say_what_is_missing_and_the_clock_error():
    text = "\n".join(summarize(clock_error_ns=250, problems=["aten ops: no"]).lines())
    assert "within 0.25 us" in text
    assert "missing: aten ops: no" in text


@pytest.mark.parametrize(
    "programs, fallbacks, expected",
    [(0, 146, "usual for eager code"), (3, 146, "npu-compiler explain"), (3, 0, ""), (0, 0, "")],
)
def test_fallbacks_are_called_usual_with_what_would_change_them(programs, fallbacks, expected):
    text = " ".join(usual_lines(programs, fallbacks))
    assert expected in text
    assert bool(text) == bool(expected)


def test_layers_that_tell_no_time_count_with_the_time_that_they_took():
    found = summarize(
        op("net", 0, 4_000_000, "program", DEVICE),
        op("MatMul", 0, 3_000_000, "layer", DEVICE, type="MatMul"),
    )
    assert found.layer_ns == 3_000_000

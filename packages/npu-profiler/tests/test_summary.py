from npu_profiler.summary import OpTime, summarize
from npu_profiler.timeline import Instant, Slice, Timeline, Track

MAIN = Track(1, 1, "main thread", "python")
DEVICE = Track(1000, 1, "programs", "npu:0")


def op(name, start, end, category="cpu_op", track=MAIN):
    return Slice(track, category, name, start, end - start)


def timeline(*slices, instants=(), **facts):
    return Timeline(0, 1000, (MAIN, DEVICE), slices, instants, facts=facts)


def test_self_time_leaves_out_the_ops_that_were_called():
    found = summarize(
        timeline(op("aten::linear", 0, 100), op("aten::addmm", 10, 70), op("aten::copy_", 20, 30))
    )
    assert found.top_ops == (
        OpTime("aten::addmm", 1, 50, 60),
        OpTime("aten::linear", 1, 40, 100),
        OpTime("aten::copy_", 1, 10, 10),
    )


def test_total_time_counts_a_recursive_call_once():
    found = summarize(timeline(op("aten::sum", 0, 100), op("aten::sum", 10, 70)))
    assert found.top_ops == (OpTime("aten::sum", 2, 100, 100),)


def test_annotations_and_brackets_around_ops_are_no_ops():
    found = summarize(
        timeline(
            op("my::step", 0, 100, "user_annotation"),
            op("Torch-Compiled Region: 0/0", 0, 100),
            op("autograd::engine::evaluate_function: MmBackward0", 0, 100),
            op("npu::program graph 0", 1, 9),
            op("aten::mm", 10, 70),
        )
    )
    assert [item.name for item in found.top_ops] == ["aten::mm", "npu::program graph 0"]
    assert found.op_calls == 2


def test_programs_and_fallbacks_are_counted():
    marks = tuple(Instant(MAIN, "fallback", name, 5) for name in ("roll", "sort", "sort"))
    found = summarize(timeline(op("p", 0, 2_000_000, "program", DEVICE), instants=marks))
    assert (found.programs, found.program_ns) == (1, 2_000_000)
    assert found.fallbacks == (("sort", 2), ("roll", 1))
    text = "\n".join(found.lines())
    assert "1 device programs (2.0 ms)" in text
    assert "fallbacks: 3 (sort x2, roll x1)" in text


def test_lines_say_what_is_missing_and_the_clock_error():
    text = "\n".join(summarize(timeline(clock_error_ns=250, problems=["aten ops: no"])).lines())
    assert "within 0.25 us" in text
    assert "missing: aten ops: no" in text
